"""What can go wrong at an edge, as a tree.

    PeerbayesError
    ├── SchemaError            (also a ValueError)  a table that cannot be described or encoded
    │   └── SchemaMismatch     two schemas, or a schema and a table, that do not fit
    ├── ConfigurationError     (also a ValueError)  a settings file that cannot be read or makes no sense
    ├── TopologyError          (also a ValueError)  a network that cannot be built or used
    ├── StructureError         (also a ValueError)  parents that make no Bayesian network
    ├── PartitionError         (also a ValueError)  rows that cannot be dealt out to peers like that
    ├── StatisticsMismatch     (also a ValueError)  statistics that cannot be added or used here
    ├── FalseReport            (also a ValueError)  a report before the first round that cannot be true
    ├── ModelFileError         (also a ValueError)  a model file that cannot be trusted
    │   ├── ModelFileDamaged   truncated, flipped, or not a model file at all
    │   └── ModelFileTooNew    written by a newer peerbayes
    ├── ExtensionError         (also an ImportError) an outside package that is missing, is broken or clashes
    ├── NotSupported           (also a NotImplementedError) what a family of an outside package cannot do
    ├── CallbackFailed         a callback that raised an error while a run went on
    ├── CallbackPartMissing    (also an ImportError) a package that a callback needs is not installed
    ├── SourceError            (also a ValueError)  rows that cannot be read, or cannot be used as they are
    ├── AlreadyThere           (also a FileExistsError and a ValueError)  a file that is not overwritten unasked
    ├── DataChanged            (also a ValueError)  other rows than those that a run was made with
    ├── DatasetError           a dataset that cannot be loaded
    │   ├── UnknownDataset     (also a ValueError)  no dataset has that name
    │   ├── DatasetUnavailable in no folder and no cache, and not to be had from here
    │   │   └── DownloadFailed the network, the server or the file it sent
    │   ├── DatasetMismatch    a table, but not the one that was asked for
    │   └── DatasetDamaged     bytes that do not match their digest, or cannot be read
    ├── ReportError            a report that cannot be made
    │   ├── PlotlyMissing      (also an ImportError) plotly is not installed
    │   └── DrawingFailed      kaleido, or the browser that it draws with, is missing or gave up
    ├── WebError               a dashboard that cannot be shown
    │   ├── AddressError       (also a ValueError)  an address that nobody should be given, or that makes no sense
    │   └── WebPartMissing     (also an ImportError) a package that the dashboard needs is not installed
    └── PeerError              what goes wrong between peers
        ├── IdentityError      (also a ValueError)  keys, certificates and rosters that cannot be trusted
        │   └── TwoRosters     two rosters of one version, both signed by the authority
        ├── TermsError         (also a ValueError)  an agreement that cannot be read or makes no sense
        ├── PartMissing        (also an ImportError) a package that real peers need is not installed
        ├── NeedsPerson        starting again does not help, a person has to decide: exit code 2
        │   ├── BrokenRecord   a peer's state and its audit log do not belong together
        │   └── AgreementRefused   what a member reported before the first round cannot be true
        └── RefusedMessage     a message that was not taken, with a named reason
            └── OtherProcess   a message of a peer of which another process was heard

Two are warnings: `SingularDataWarning` (training rows that a model cannot be told from, though one is made) and
`DataWarning` (columns that look like no quantity and no category, though they are taken for one).

A caller's mistake in an argument is a plain ValueError or TypeError. Every message says what arrived, what
was expected, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class PeerbayesError(Exception):
    """The root of every named error."""


class SingularDataWarning(UserWarning):
    """Training rows that leave parameters open: a class of one row, columns that determine each other."""


class DataWarning(UserWarning):
    """Columns that say something else than they seem: record numbers, codes for missing values, several spellings."""


class CallbackFailed(PeerbayesError):
    """A callback raised an error while a run went on; the cause says which."""

    run: Any = None
    """The run, where it was finished."""


class CallbackPartMissing(PeerbayesError, ImportError):
    """A package that a callback needs is not installed."""


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


class ExtensionError(PeerbayesError, ImportError):
    """A family, strategy, topology, source or report section of an outside package that cannot be used."""


class NotSupported(PeerbayesError, NotImplementedError):
    """What a family does not define: `sample`, `explain`, `describe`, or statistics in other units."""


class AlreadyThere(PeerbayesError, FileExistsError, ValueError):
    """A file or a folder that exists already; nothing is overwritten without being asked."""


class DataChanged(PeerbayesError, ValueError):
    """Other rows than those that a run was made with."""


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


class ReportError(PeerbayesError):
    """Base class: a report cannot be written."""


class PlotlyMissing(ReportError, ImportError):
    """plotly, the package that contains plotly.js, is not installed."""


class DrawingFailed(ReportError):
    """An image file could not be drawn: this needs kaleido and a browser."""


# Packages needed to read the folder of a real peer; all others belong to the dashboard itself.
OF_PEERS = {"msgspec", "cryptography"}


class WebError(PeerbayesError):
    """Base class of the dashboard's errors."""


class AddressError(WebError, ValueError):
    """An address that is invalid, or not safe with the given options."""


class WebPartMissing(WebError, ImportError):
    """A package that the dashboard needs is not installed."""


@contextmanager
def web_parts_needed() -> Iterator[None]:
    """Turn a failed import in the body into an error that says what to install."""
    try:
        yield
    except ModuleNotFoundError as missing:
        name = (missing.name or "").partition(".")[0]
        extra = "web,peer" if name in OF_PEERS else "web"
        raise WebPartMissing(
            f"{name} is not installed; the dashboard needs it: pip install 'peerbayes[{extra}]'"
        ) from missing


class PeerError(PeerbayesError):
    """The root of all errors of real peers."""


class IdentityError(PeerError, ValueError):
    """A key, a certificate or a roster that cannot be trusted."""


class TwoRosters(IdentityError):
    """Two rosters of one version, both signed by the authority."""


class TermsError(PeerError, ValueError):
    """An agreement that cannot be read, or is inconsistent."""


class PartMissing(PeerError, ImportError):
    """A package that real peers need is not installed."""


class NeedsPerson(PeerError):
    """A problem that only a person can solve: a restart would end the same way. Commands end with exit code 2."""


class BrokenRecord(NeedsPerson):
    """A peer's state and its audit log do not belong together; `case` names how."""

    def __init__(self, case: str, message: str) -> None:
        super().__init__(message)
        self.case = case


class AgreementRefused(NeedsPerson):
    """What a member reported before the first round cannot be true; a person must look at it."""


class RefusedMessage(PeerError):
    """A message that was not accepted; `reason` names why in a word or two, for logs and counters."""

    def __init__(self, reason: str, message: str | None = None) -> None:
        super().__init__(message or reason)
        self.reason = reason

    @classmethod
    def of(cls, violation: Any) -> RefusedMessage:
        """Return the error for numbers that no honest peer sends."""
        return cls(violation.reason, violation.detail)


class OtherProcess(RefusedMessage):
    """A message of a peer that also runs as another process.

    shown     that process, as the peer itself signed it: proof for the one that is refused
    certain   whether both are running; otherwise this may be the last message of one that was just killed
    """

    def __init__(self, reason: str, message: str, shown: Any, certain: bool = True) -> None:
        super().__init__(reason, message)
        self.shown, self.certain = shown, certain


@contextmanager
def parts_needed() -> Iterator[None]:
    """Raise PartMissing, which says how to install it, where an import within this context misses a package."""
    try:
        yield
    except ModuleNotFoundError as missing:
        raise PartMissing(
            f"{missing.name} is not installed; real peers need it: pip install 'peerbayes[peer]'"
        ) from missing


class SourceError(PeerbayesError, ValueError):
    """Rows that cannot be read, or cannot be used as they are."""
