"""The operator's commands, by subject. Each is thin: it reads options, calls `Admin`, prints the result."""
