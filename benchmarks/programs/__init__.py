"""Consumers that the suite starts in processes of their own."""
