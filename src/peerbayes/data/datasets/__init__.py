"""The paper's sixteen datasets and scikit-learn's four, by name.

Nothing is used before its digest (where one is known), rows, columns and class rates are checked.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from peerbayes.data.datasets.entries import Entry, arrange, check, find, rates, unpack
from peerbayes.data.datasets.storage import (
    SUFFIXES,
    Places,
    Progress,
    decode,
    download,
    encode,
    need_parquet,
    places,
    record_of,
    remembered,
    verified,
    write_recorded,
)
from peerbayes.errors import (
    DatasetDamaged,
    DatasetError,
    DatasetMismatch,
    DatasetUnavailable,
    DownloadFailed,
    UnknownDataset,
)

if TYPE_CHECKING:
    import pandas as pd

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

Where = Literal["scikit-learn", "folder", "cache", "download", "import"]

INDEX = ("Unnamed: 0",)  # pandas' name for the row numbers that it wrote to a CSV


@dataclass(frozen=True, eq=False)
class Dataset:
    """A table of features and its labels, in the publisher's names and values, checked against the registry."""

    name: str
    frame: pd.DataFrame = field(repr=False)
    labels: pd.Series = field(repr=False)
    description: str
    source: str  # the page that publishes it
    licence: str
    rows: int
    columns: int
    rates: dict[Any, float] | Literal["balanced"]  # of the positive class


def load(
    name: str, *, paper: bool = False, download: bool = True, progress: Progress | None = None
) -> Dataset:
    """Load the dataset of that name, as it is published or as the paper uses it.

    name      as in the paper's table ("letter"), in full ("letter recognition") or by another common name
    paper     leave out the columns that the paper does (oral of smoking, veil-type of secondary); nothing else differs
    download  whether it may be downloaded where neither PEERBAYES_DATA nor the cache holds it
    progress  called with the bytes so far and the bytes in total during a download
    """
    entry = find(name)
    frame = table(entry, places(), download, progress)
    features, labels = frame[list(entry.expected.columns)], frame[entry.expected.label]
    features = features.drop(columns=list(entry.not_in_paper)) if paper else features
    return Dataset(
        name=entry.name,
        frame=features,
        labels=labels,
        description=entry.description,
        source=entry.source,
        licence=entry.licence,
        rows=len(features),
        columns=len(features.columns),
        rates=rates(labels, entry.expected),
    )


def where(entry: Entry, folders: Places) -> Where:
    """Return where `load` would take a dataset from; "import": nowhere until a file is imported."""
    if not entry.file:
        return "scikit-learn"
    if (path := folders.held(entry.file)) is not None:
        return "folder" if path.parent == folders.folder else "cache"
    return "import" if entry.origin is None else "download"


def table(
    entry: Entry, folders: Places, may_download: bool = True, progress: Progress | None = None
) -> pd.DataFrame:
    """Return the features and, last, the labels of a dataset, from the first source that has it."""
    if not entry.file:
        return _checked(_bundled(entry), entry, f"scikit-learn's {entry.name}")
    path = folders.held(entry.file)
    if path is not None and path.parent == folders.folder:
        return _checked(_decoded(path.read_bytes(), entry, path), entry, path)
    if path is not None:
        try:
            return _checked(_decoded(verified(path), entry, path), entry, path)
        except (DatasetDamaged, DatasetMismatch) as error:
            command = "fetch NAME --again" if entry.origin is not None else "import NAME FILE"
            remedy = command.replace("NAME", entry.name)
            raise type(error)(f"{error}. Replace it: `peerbayes datasets {remedy}`") from error
    if not may_download:
        raise DatasetUnavailable(
            f"{entry.name} is neither in PEERBAYES_DATA nor in the cache. {advice(entry)}"
        )
    return fetch(entry, folders, progress)


def fetch(entry: Entry, folders: Places, progress: Progress | None = None) -> pd.DataFrame:
    """Download a dataset into the cache, replacing an older file, and read it."""
    if entry.origin is None:
        raise DatasetUnavailable(f"{entry.name} cannot be downloaded. {advice(entry)}")
    need_parquet()
    path = folders.cache / entry.file
    try:
        with _temporary(folders.cache) as file:
            download(entry.origin.url, file, progress)
            frame, digest = unpack(entry.origin, file, entry.origin.url)
    except (DownloadFailed, DatasetDamaged) as error:
        raise type(error)(f"{error}. {advice(entry)}") from error
    first = remembered(path).get("origin_sha256", digest)
    if first != digest:
        raise DatasetDamaged(
            f"{entry.origin.url} has changed since the first download: the sha256 of its table is {digest}, "
            f"expected {first}. If its publisher confirms the change, remove {record_of(path)} and fetch again"
        )
    return _placed(frame, entry, path, entry.origin.url, digest)


def take(entry: Entry, folders: Places, file: Path, label: str | None = None) -> pd.DataFrame:
    """Import a file into the cache: CSV, Parquet, .npz, or the publisher's own file (.zip, .pq).

    label  the name of the label's column, where it is not the registry's
    """
    if not entry.file:
        raise ValueError(f"{entry.name} comes with scikit-learn; there is nothing to import")
    path, suffix = folders.cache / entry.file, file.suffix.lower()
    if path.suffix == ".parquet":
        need_parquet()
    if entry.origin is not None and suffix == Path(entry.origin.url).suffix:
        with file.open("rb") as opened:
            frame, digest = unpack(entry.origin, opened, file)
        return _placed(frame, entry, path, str(file), digest)
    if suffix not in SUFFIXES:
        raise ValueError(f"{file} ends in {suffix!r}; expected {', '.join(SUFFIXES)}")
    frame = decode(file.read_bytes(), suffix, entry.expected.label, file)
    if label is not None and label not in frame.columns:
        raise ValueError(f"{file} has no column {label!r}; it has {', '.join(map(str, frame.columns))}")
    if label is not None:
        frame = frame.rename(columns={label: entry.expected.label})
    return _placed(frame, entry, path, str(file), None)


def advice(entry: Entry) -> str:
    """Return what to do where a dataset is not available."""
    instruction = entry.by_hand if entry.origin is None else f"download {entry.origin.url}"
    return (
        f"Manually: {instruction}; the page is {entry.source}. Then run `peerbayes datasets import {entry.name} FILE`. "
        f"Or set PEERBAYES_DATA to a folder that holds {entry.file}"
    )


def _placed(frame: pd.DataFrame, entry: Entry, path: Path, source: str, digest: str | None) -> pd.DataFrame:
    """Check a table, write it to the cache and return it as it will be read from there."""
    arranged = arrange(frame, entry.expected, (*entry.ignored, *INDEX), source)
    _checked(arranged, entry, source)
    content = encode(arranged, path.suffix)
    write_recorded(path, content, source, digest)
    return _decoded(content, entry, path)


def _checked(frame: pd.DataFrame, entry: Entry, source: object) -> pd.DataFrame:
    arranged = arrange(frame, entry.expected, (), source)
    check(arranged[list(entry.expected.columns)], arranged[entry.expected.label], entry.expected, source)
    return arranged


def _decoded(content: bytes, entry: Entry, path: Path) -> pd.DataFrame:
    return decode(content, path.suffix, entry.expected.label, path)


def _bundled(entry: Entry) -> pd.DataFrame:
    """Return a table of scikit-learn's, with the names of its classes as labels."""
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{entry.name.replace('-', '_')}")(as_frame=True)
    return bunch.data.assign(**{entry.expected.label: bunch.target_names[bunch.target.to_numpy()]})


def _temporary(folder: Path) -> IO[bytes]:
    """Open a file without a name in the cache: the system removes it when it is closed, whatever happens."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=folder)
    except OSError as error:
        raise DatasetError(
            f"{folder} cannot be written: {error.strerror}. Set PEERBAYES_CACHE to a writable folder"
        ) from error
