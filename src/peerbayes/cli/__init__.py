"""The commands of `peerbayes`: each parses its arguments, calls the library and prints."""
