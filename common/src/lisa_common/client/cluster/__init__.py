"""The nodes of a Cluster: which of them a call goes to, and what to do while one is silent."""
