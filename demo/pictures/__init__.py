"""Pictures of the dashboard and of commands for the docs: `make pictures`."""
