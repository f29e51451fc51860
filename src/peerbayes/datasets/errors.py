"""What can go wrong with a dataset, as a branch of the tree in `peerbayes.errors`.

PeerbayesError
└── DatasetError
    ├── UnknownDataset       (also a ValueError)  no dataset has that name
    ├── DatasetUnavailable   in no folder and no cache, and not to be had from here
    │   └── DownloadFailed   the network, the server or the file it sent
    ├── DatasetMismatch      a table, but not the one that was asked for
    └── DatasetDamaged       bytes that do not match their digest, or cannot be read
"""

from peerbayes.errors import PeerbayesError


class DatasetError(PeerbayesError):
    """A dataset that cannot be loaded, downloaded or imported."""


class UnknownDataset(DatasetError, ValueError):
    """No dataset has that name."""


class DatasetUnavailable(DatasetError):
    """In no folder and no cache, and not to be had from here."""


class DownloadFailed(DatasetUnavailable):
    """The network, the server or the file it sent let us down."""


class DatasetMismatch(DatasetError):
    """A table whose rows, columns or classes are not those of the dataset."""


class DatasetDamaged(DatasetError):
    """Bytes that do not match their digest, or cannot be read."""
