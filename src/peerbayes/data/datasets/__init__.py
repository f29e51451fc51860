"""The paper's sixteen datasets and scikit-learn's four, by name.

    from peerbayes.data.datasets import load

    letter = load("letter")
    letter.frame, letter.labels

A dataset is taken from the folder that PEERBAYES_DATA names, else from the user's cache (PEERBAYES_CACHE), else it is
downloaded from UCI or OpenML and kept in the cache as Parquet. Datasets without a download are imported once, manually:
`peerbayes datasets import NAME FILE`.
"""

from peerbayes.data.datasets.loading import Dataset, load
from peerbayes.errors import (
    DatasetDamaged,
    DatasetError,
    DatasetMismatch,
    DatasetUnavailable,
    DownloadFailed,
    UnknownDataset,
)

__all__ = [
    "Dataset",
    "DatasetDamaged",
    "DatasetError",
    "DatasetMismatch",
    "DatasetUnavailable",
    "DownloadFailed",
    "UnknownDataset",
    "load",
]
