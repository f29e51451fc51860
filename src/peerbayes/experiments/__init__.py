"""The paper's tables, cell by cell: specified in TOML, computed once, stored, and compared with the printed numbers."""
