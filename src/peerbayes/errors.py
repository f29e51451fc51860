"""The named errors of the package, as a tree.

    PeerbayesError
    ├── SchemaError            (also a ValueError)  a table that cannot be described or encoded
    │   └── SchemaMismatch     two schemas, or a schema and a table, that do not fit
    ├── ConfigurationError     (also a ValueError)  a settings file that cannot be read or is invalid
    ├── TopologyError          (also a ValueError)  a network that cannot be built or used
    ├── StructureError         (also a ValueError)  parents that make no Bayesian network
    ├── PartitionError         (also a ValueError)  rows that cannot be distributed to peers like that
    ├── StatisticsMismatch     (also a ValueError)  statistics that cannot be added or used here
    ├── FalseReport            (also a ValueError)  a report before the first round that cannot be true
    ├── DatasetError           a dataset that cannot be obtained: see `datasets.errors`
    ├── SourceError            (also a ValueError)  rows that cannot be read: see `sources.errors`
    ├── ReportError            a report that cannot be made: see `report.errors`
    ├── PeerError              an error between peers: see `peers.errors`
    ├── WebError               a dashboard that cannot be shown: see `web.errors`
    └── ModelFileError         (also a ValueError)  a model file that cannot be trusted
        ├── ModelFileDamaged   truncated, altered, or not a model file at all
        └── ModelFileTooNew    written by a newer peerbayes

A caller's mistake in an argument is a plain ValueError or TypeError. Every message says what arrived, what
was expected, and what to do.
"""


class PeerbayesError(Exception):
    """The root of every named error."""


class SchemaError(PeerbayesError, ValueError):
    """A table that cannot be described or encoded."""


class SchemaMismatch(SchemaError):
    """Two schemas, or a schema and a table, that do not fit together."""


class ConfigurationError(PeerbayesError, ValueError):
    """A settings file that cannot be read, or is invalid."""


class TopologyError(PeerbayesError, ValueError):
    """A network that cannot be built or used."""


class StructureError(PeerbayesError, ValueError):
    """Parents that make no Bayesian network."""


class PartitionError(PeerbayesError, ValueError):
    """Rows that cannot be distributed to peers like that."""


class StatisticsMismatch(PeerbayesError, ValueError):
    """Statistics that cannot be added to others, or used by this estimator."""


class FalseReport(PeerbayesError, ValueError):
    """A report before the first round that no honest peer can have made."""


class ModelFileError(PeerbayesError, ValueError):
    """A model file that cannot be trusted."""


class ModelFileDamaged(ModelFileError):
    """Truncated, altered, or not a model file at all."""


class ModelFileTooNew(ModelFileError):
    """Written by a newer peerbayes than this one."""
