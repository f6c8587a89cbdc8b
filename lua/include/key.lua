-- Reads the key of a message from its record.
--@include record

local KEY_HEADER = 'lisa-key'
local MOST_KEY_BYTES = 200

-- The key, or nil for none. Producers write its header first, so that mostly the headers need not be decoded.
local function key_in(record)
  local headers = headers_in(record)
  if not headers or not string.find(headers, '"' .. KEY_HEADER .. '"', 1, true) then
    return nil
  end
  local key = string.match(headers, '^{"lisa%-key":"([^"\\]*)"')
  if not key then
    local is_read, decoded = pcall(cjson.decode, headers)
    key = is_read and type(decoded) == 'table' and decoded[KEY_HEADER]
  end
  -- Other programs may write any value.
  local is_key = type(key) == 'string' and #key > 0 and #key <= MOST_KEY_BYTES and not string.find(key, '%c')
  return is_key and key or nil
end
