"""Builds the calls of each program and reads their replies, without I/O."""
