"""What several test files use, since no test file imports another: networks of peers, processes, liars, pages."""
