"""The paper's tables, cell by cell: specified in TOML, computed once, kept in a store, set beside what was printed."""
