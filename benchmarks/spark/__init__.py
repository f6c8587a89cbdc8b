"""How fast Spark writes to Lisa and reads from it."""
