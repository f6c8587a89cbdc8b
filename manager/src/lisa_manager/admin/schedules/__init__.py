"""Schedules: how far they have come, their changes, and messages beside their ticks."""
