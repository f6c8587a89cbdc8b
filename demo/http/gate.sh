#!/bin/bash
# The gates of an airport with curl: polls, boards, acks. Arguments: journal, topic, gateways.
journal=$1 topic=$2
shift 2
gateways=("$@")

call() {
  # Makes a call by one of the gateways, until one answers with another code than 500.
  local name=$1 answer
  shift
  while true; do
    answer=$(curl -s -m 10 "http://${gateways[RANDOM % ${#gateways[@]}]}/camellia/delayQueue/$name" "$@") &&
      [[ $answer != *'"code":500'* && -n $answer ]] && break
    sleep 0.1
  done
  printf '%s' "$answer"
}

field() {
  # The value of a field of the one message, without its quotes.
  sed -n "s/.*\"$2\":\"\{0,1\}\([^\",}]*\).*/\1/p" <<<"$1"
}

: >"$journal"
while true; do
  answer=$(call longPollingMsg -d topic="$topic" -d ackTimeoutMillis=2000 -d longPollingTimeoutMillis=2000)
  at=$(date +%s%3N)
  id=$(field "$answer" msgId)
  [[ -z $id ]] && continue
  attempt=$(field "$answer" retry)
  echo "{\"begun\":\"$id\",\"attempt\":$attempt,\"due\":$(field "$answer" triggerTime),\"at\":$at}" >>"$journal"
  call ackMsg -d topic="$topic" -d ack=true --data-urlencode "msgId=$id" >/dev/null
  echo "{\"acked\":\"$id\",\"attempt\":$attempt,\"ack\":true}" >>"$journal"
done
