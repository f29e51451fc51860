"""The groups of commands behind `peerbayes`: each parses, calls and prints."""
