"""Metrics, health and traces of the programs. They cost nothing until a program turns them on."""
