"""A deterministic simulation: whole installations on virtual time, each drawn from one seed. See README.md."""
