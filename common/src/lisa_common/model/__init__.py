"""The stored data: keys, records, deliveries, policies, and the shards of a topic. No I/O."""
