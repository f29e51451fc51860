"""The dashboard: a separate process that reads a folder and streams updates to browsers."""
