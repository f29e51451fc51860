"""The errors of datasets, a branch of the tree in `peerbayes.errors`.

PeerbayesError
└── DatasetError
    ├── UnknownDataset       (also a ValueError)  no dataset has that name
    ├── DatasetUnavailable   in no folder and no cache, and cannot be downloaded
    │   └── DownloadFailed   the network or the server failed, or its file is wrong
    ├── DatasetMismatch      a table, but not the requested one
    └── DatasetDamaged       bytes that do not match their digest, or cannot be read
"""

from peerbayes.errors import PeerbayesError


class DatasetError(PeerbayesError):
    """A dataset that cannot be loaded, downloaded or imported."""


class UnknownDataset(DatasetError, ValueError):
    """No dataset has that name."""


class DatasetUnavailable(DatasetError):
    """In no folder and no cache, and cannot be downloaded."""


class DownloadFailed(DatasetUnavailable):
    """The network or the server failed, or the file it sent is wrong."""


class DatasetMismatch(DatasetError):
    """A table whose rows, columns or classes are not those of the dataset."""


class DatasetDamaged(DatasetError):
    """Bytes that do not match their digest, or cannot be read."""
