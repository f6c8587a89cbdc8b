"""The operator's commands, by what they are about. Each is thin: it reads options, runs a flow, prints the result."""
