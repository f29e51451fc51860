"""The dashboard: a process of its own that reads a folder, and sends what is new to browsers."""
