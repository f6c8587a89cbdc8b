"""What is stored: keys, records, deliveries, policies, and how a topic is spread over shards. No I/O."""
