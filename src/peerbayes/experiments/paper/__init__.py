"""One TOML file for each table and figure of the paper."""
