"""Data sets, and how their rows are divided among clients."""
