"""The nodes of a Cluster: routing calls to them, and handling silent ones."""
