"""Fixtures of tests that download datasets."""

from shared.dataset_server import held, server  # noqa: F401
