"""The calls that each program makes, built and read without I/O: one module for each program."""
