"""What is known of a dataset before it is loaded: its shape and digest, and where it comes from (`catalogue.toml`)."""

from __future__ import annotations

import difflib
import hashlib
import io
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import IO, TYPE_CHECKING, Any, Literal

from peerbayes.data import files as toml
from peerbayes.errors import DatasetDamaged, DatasetMismatch, UnknownDataset

if TYPE_CHECKING:
    import pandas as pd


# --- the expected shape of a dataset: rows, columns, classes and their rates

RATE_TOLERANCE = 0.0005  # rates are written with four digits
BALANCE_TOLERANCE = 0.1  # "balanced": every class within a tenth of its even share, as letter's are
SHOWN = 6  # names listed in an error before "and N more"


@dataclass(frozen=True)
class Expected:
    """The shape of a table and of its labels, by which a wrong file is recognised."""

    rows: int
    columns: tuple[str, ...]
    label: str
    classes: int
    rates: tuple[str | int, float] | Literal["balanced"]  # the positive class and its rate
    text: frozenset[str] = frozenset()  # columns of text; all others hold numbers
    missing: bool = False  # whether values may be missing
    largest: float | None = None  # no number is further from zero


def arrange(frame: pd.DataFrame, expected: Expected, ignored: tuple[str, ...], where: object) -> pd.DataFrame:
    """Return the expected columns in order, the label last, without columns known to be of no use."""
    names = [str(name) for name in frame.columns]
    wanted = (*expected.columns, expected.label)
    lacking = [name for name in wanted if name not in names]
    strange = [name for name in names if name not in wanted and name not in ignored]
    if lacking or strange or len(set(names)) < len(names):
        problems = [
            *([f"lacks {_listed(lacking)}"] if lacking else []),
            *([f"also has {_listed(strange)}"] if strange else []),
            *(["has two columns with the same name"] if len(set(names)) < len(names) else []),
        ]
        raise DatasetMismatch(
            f"{where} has {len(names)} columns, expected {len(wanted)} ({len(expected.columns)} and the label "
            f"{expected.label!r}): it {' and '.join(problems)}"
        )
    return frame.set_axis(names, axis=1)[list(wanted)].reset_index(drop=True)


def check(frame: pd.DataFrame, labels: pd.Series, expected: Expected, where: object) -> None:
    """Refuse a table that is not the dataset, and list everything that is wrong with it."""
    wrong = [*_sizes(frame, expected), *_values(frame, expected), *_classes(labels, expected)]
    if wrong:
        raise DatasetMismatch(f"{where} is not this dataset: " + "; ".join(wrong))


def rates(labels: pd.Series, expected: Expected) -> dict[Any, float] | Literal["balanced"]:
    """Return the rate of the positive class, or "balanced"."""
    if expected.rates == "balanced":
        return "balanced"
    return {expected.rates[0]: float((labels == expected.rates[0]).mean())}


def _sizes(frame: pd.DataFrame, expected: Expected) -> Iterator[str]:
    if len(frame) != expected.rows:
        yield f"{len(frame):,} rows, expected {expected.rows:,}"
    if len(frame.columns) != len(expected.columns):
        yield f"{len(frame.columns)} columns, expected {len(expected.columns)}"


def _values(frame: pd.DataFrame, expected: Expected) -> Iterator[str]:
    import numpy as np
    from pandas.api.types import is_numeric_dtype

    numbers = {str(name) for name, kind in frame.dtypes.items() if is_numeric_dtype(kind)}
    if spoiled := sorted(set(frame.columns) - expected.text - numbers):
        yield f"text in {_listed(spoiled)}, expected numbers"
    if bare := sorted(expected.text & numbers):
        yield f"numbers in {_listed(bare)}, expected text"
    if not expected.missing and (holes := int(frame.isna().to_numpy().sum())):
        yield f"{holes:,} missing values, expected none"
    if expected.largest is not None and not spoiled:
        largest = float(np.abs(frame[sorted(numbers)].to_numpy()).max(initial=0))
        if largest > expected.largest:
            yield f"values up to {largest:g}, expected at most {expected.largest:g}"


def _classes(labels: pd.Series, expected: Expected) -> Iterator[str]:
    if unlabelled := int(labels.isna().sum()):
        yield f"{unlabelled:,} rows without a label, expected none"
    counts = labels.value_counts(normalize=True)
    if len(counts) != expected.classes:
        yield f"{len(counts)} classes, expected {expected.classes}"
    elif expected.rates == "balanced":
        share = 1 / expected.classes
        if (worst := float((counts - share).abs().max())) > BALANCE_TOLERANCE * share:
            yield f"a class that is {worst:.1%} of all rows away from its even share, expected balanced classes"
    else:
        positive, rate = expected.rates
        observed = float((labels == positive).mean())
        if abs(observed - rate) > RATE_TOLERANCE:
            yield f"{observed:.2%} of the labels are {positive!r}, expected {rate:.2%}"


def _listed(names: list[str]) -> str:
    omitted = len(names) - SHOWN
    return ", ".join(map(repr, names[:SHOWN])) + (f" and {omitted} more" if omitted > 0 else "")


# --- the publishers' own files: the tables in a download, their digests, and how to read them
# A digest is that of the table inside an archive, with line ends as \\n: archives are repacked from time to time,
# and their tables do not change. Where none is known, the structure of the table is checked, and every later download
# must match the digest of the first (see `peerbayes.data.datasets.storage`): trust on first use.

MEMBER_LIMIT = 64 * 2**20  # bytes of one unpacked table; the largest has five million

# Text stays text: "NA", "None" and "?" are values; only an empty field is missing.
AS_WRITTEN: dict[str, Any] = {
    "keep_default_na": False,
    "na_values": [""],
    "low_memory": False,
}


@dataclass(frozen=True)
class Member:
    """A table in a download: the names of the archives around it, then its own; empty: the file itself."""

    path: tuple[str, ...] = ()
    sha256: str | None = None


@dataclass(frozen=True)
class Origin:
    """The URL of a published dataset, and how its file becomes a table."""

    url: str
    read: Callable[[list[bytes]], pd.DataFrame]
    members: tuple[Member, ...] = (Member(),)


def unpack(origin: Origin, file: IO[bytes], where: object) -> tuple[pd.DataFrame, str]:
    """Return the table in a publisher's file and the digest of its members, each checked where one is known."""
    try:
        contents = [_content(file, member.path) for member in origin.members]
    except Exception as error:  # untrusted bytes: zipfile and zlib fail in many ways
        raise DatasetDamaged(f"{where} cannot be unpacked: {error}") from error
    for member, content in zip(origin.members, contents, strict=True):
        member_digest = hashlib.sha256(content).hexdigest()
        if member.sha256 not in (None, member_digest):
            raise DatasetDamaged(
                f"{'/'.join(member.path) or 'the table'} in {where} is not the published one: its sha256 is "
                f"{member_digest}, expected {member.sha256}"
            )
    digest = hashlib.sha256(b"".join(contents)).hexdigest()
    try:
        return origin.read(contents), digest
    except Exception as error:  # as above, with pandas and pyarrow
        raise DatasetDamaged(f"{where} cannot be read as a table: {error}") from error


def delimited(separator: str, names: tuple[str, ...] | None = None) -> Callable[[list[bytes]], pd.DataFrame]:
    """Return a reader of delimited text; without names the first line holds them."""

    def read(contents: list[bytes]) -> pd.DataFrame:
        import pandas as pd

        return pd.read_csv(
            io.BytesIO(contents[0]),
            sep=separator,
            header="infer" if names is None else None,
            names=None if names is None else list(names),
            **AS_WRITTEN,
        )

    return read


def census(names: tuple[str, ...]) -> Callable[[list[bytes]], pd.DataFrame]:
    """Return a reader of Adult's two files; the second begins with a remark and ends every label with a full stop."""

    def read(contents: list[bytes]) -> pd.DataFrame:
        import pandas as pd

        frames = [
            pd.read_csv(
                io.BytesIO(content),
                header=None,
                names=list(names),
                skiprows=1 if content.startswith(b"|") else 0,
                skipinitialspace=True,
                **AS_WRITTEN,
            )
            for content in contents
        ]
        combined = pd.concat(frames, ignore_index=True)
        return combined.assign(**{names[-1]: combined[names[-1]].str.rstrip(".")})

    return read


def openml(names: tuple[str, ...] | None = None) -> Callable[[list[bytes]], pd.DataFrame]:
    """Return a reader of OpenML's Parquet files of numbers, where integers may be floats and labels text."""

    def read(contents: list[bytes]) -> pd.DataFrame:
        import pandas as pd

        frame = pd.read_parquet(io.BytesIO(contents[0]))
        frame = frame if names is None else frame.set_axis(list(names), axis=1)
        return frame.apply(lambda column: _as_integers(pd.to_numeric(column.astype(object))))

    return read


def repaired(contents: list[bytes]) -> pd.DataFrame:
    """Read OpenML's run or walk, with the lost decimal points put back.

    There every value that was 1 or more away from zero is ten times too large, so none lies between 1 and 10. The
    sensor wrote four decimals.
    """
    frame = openml()(contents)
    measured = frame.select_dtypes("float")
    return frame.assign(**measured.where(measured.abs() < 10, (measured / 10).round(4)))


def _as_integers(column: pd.Series) -> pd.Series:
    return column.astype("int64") if (column % 1 == 0).all() else column


def _content(file: IO[bytes], path: tuple[str, ...]) -> bytes:
    """Return the bytes of a member; archive members are matched by file name, in whatever folder they lie."""
    file.seek(0)
    if not path:
        return _limited(file)
    with zipfile.ZipFile(file) as archive:
        matches = [name for name in archive.namelist() if name.rsplit("/", 1)[-1] == path[0]]
        if not matches:
            raise ValueError(f"it holds {', '.join(archive.namelist()[:10])}; expected {path[0]}")
        with archive.open(matches[0]) as member:
            content = _limited(member)
    if path[1:]:
        return _content(io.BytesIO(content), path[1:])
    return content.replace(b"\r\n", b"\n")


def _limited(file: IO[bytes]) -> bytes:
    content = file.read(MEMBER_LIMIT + 1)
    if len(content) > MEMBER_LIMIT:
        raise ValueError(f"it is larger than {MEMBER_LIMIT:,} bytes")
    return content


# --- entries of datasets, read from `catalogue.toml`, and finding them by any of their names


@dataclass(frozen=True)
class Entry:
    """The registry's entry of a dataset.

    name       as in the first column of the paper's table of datasets
    file       its name in PEERBAYES_DATA and in the cache; empty for what comes with scikit-learn
    source     the page that publishes it
    origin     a download, where there is one
    by_hand    how to get it where there is none
    ignored    columns of the publisher's file that are not features: row numbers, names, dates
    not_in_paper   columns that the paper leaves out
    """

    name: str
    aliases: tuple[str, ...]
    expected: Expected
    description: str
    source: str
    licence: str
    file: str = ""
    origin: Origin | None = None
    by_hand: str = ""
    ignored: tuple[str, ...] = ()
    not_in_paper: tuple[str, ...] = ()


def _catalogue() -> dict[str, Entry]:
    """Return all entries by name, in the order of the paper's table; the others come last."""
    name = "catalogue.toml"
    content = toml.table((files("peerbayes.data.datasets") / name).read_text(encoding="utf-8"), name)
    templates, datasets = content["template"], content["dataset"]
    return {
        name: _entry(name, {**templates.get(datasets[name].get("template"), {}), **datasets[name]})
        for name in dict.fromkeys((*PAPER, *datasets))
    }


def _entry(name: str, fields: dict[str, Any]) -> Entry:
    """Return the entry of a dataset from its table in the catalogue, which says what each field is."""
    columns = _split(fields.get("columns", "")) or tuple(f"f{index}" for index in range(fields["numbered"]))
    text = frozenset(columns) - set(_split(fields["text_but"])) if "text_but" in fields else frozenset()
    expected = Expected(
        fields["rows"],
        columns,
        fields["label"],
        fields["classes"],
        (fields["positive"], fields["rate"]) if "rate" in fields else "balanced",
        text or frozenset(_split(fields.get("text", ""))),
        fields.get("missing", False),
        fields.get("largest"),
    )
    return Entry(
        name,
        tuple(fields.get("aliases", ())),
        expected,
        fields["description"].replace("{subject}", fields.get("subject", "")),
        fields["source"],
        fields["licence"],
        fields.get("file", ""),
        _origin(fields, expected) if "url" in fields else None,
        fields.get("by_hand", ""),
        tuple(fields.get("ignored", ())),
        tuple(fields.get("not_in_paper", ())),
    )


def _origin(fields: dict[str, Any], expected: Expected) -> Origin:
    ordered = {
        "label first": (expected.label, *expected.columns),
        "label last": (*expected.columns, expected.label),
    }.get(fields.get("names", ""))
    read = {
        "delimited": lambda: delimited(fields["separator"], ordered),
        "census": lambda: census(ordered or ()),
        "openml": lambda: openml(ordered),
        "repaired": lambda: repaired,
    }[fields["reader"]]()
    members = (Member(tuple(member["path"]), member.get("sha256")) for member in fields.get("members", ()))
    return Origin(fields["url"], read, tuple(members) or (Member(),))


def _split(listed: str) -> tuple[str, ...]:
    """Return names that are written in one string, separated by commas."""
    return tuple(name.strip() for name in listed.split(",")) if listed else ()


def plain(name: str) -> str:
    """Return a name without case and punctuation: "Letter_Recognition" is "letter recognition"."""
    return re.sub(r"[^a-z0-9]+", " ", name.casefold()).strip()


def find(name: str) -> Entry:
    """Return the dataset of that name or alias; suggest close ones where there is none."""
    by_alias = {plain(alias): entry for entry in ENTRIES.values() for alias in (entry.name, *entry.aliases)}
    if (entry := by_alias.get(plain(name))) is not None:
        return entry
    close = difflib.get_close_matches(plain(name), by_alias, n=5, cutoff=0.6)
    offered = list(dict.fromkeys(by_alias[alias].name for alias in close))
    hint = f"did you mean {' or '.join(offered)}? " if offered else ""
    raise UnknownDataset(f"no dataset is called {name!r}; {hint}expected one of {', '.join(ENTRIES)}")


# In the order of the paper's table.
PAPER = (
    "skin", "pulsar", "catsvsdogs", "bank", "default", "soft", "adult", "run", "smartgrid", "smoking", "yearbook",
    "secondary", "fashion", "cifar10", "mnist", "letter",
)  # fmt: skip

ENTRIES = _catalogue()

# The paper's image sets, as 512 features each.
IMAGES = tuple(name for name, entry in ENTRIES.items() if entry.file.endswith(".npz"))
