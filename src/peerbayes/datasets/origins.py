"""The publishers' own files: the tables in a download, their digests, and how to read them.

A digest is that of the table inside an archive, with line ends as \\n: archives are repacked from time to time, and
their tables do not change. Where none is known, the structure of the table is checked, and every later download must
match the digest of the first (see `peerbayes.datasets.cache`): trust on first use.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from peerbayes.datasets.errors import DatasetDamaged

if TYPE_CHECKING:
    import pandas as pd

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
