"""What an outside package can bring to peerbayes: one module for each kind. `pyproject.toml` declares them."""
