"""The same day over HTTP: two gateways, and clients that know nothing of Lisa, in Python, curl and Node."""
