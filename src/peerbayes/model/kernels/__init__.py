"""Compiled loops, loaded on first use: every one has a twin in plain NumPy."""
