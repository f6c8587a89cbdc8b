"""The shop of the README with a database, whose relays are killed."""
