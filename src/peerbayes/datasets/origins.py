"""The publishers' own files: which tables lie in a download, what their digests are, and how they are read.

A digest is that of the table inside an archive, with line ends as \\n: archives are packed anew from time to time, and
their tables stay. Where none is known, the structure of the table is checked, and the digest of the first download is
kept and asked of every later one (see `peerbayes.datasets.cache`): trust on first use.
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

PART_LIMIT = 64 * 2**20  # bytes of one unpacked table; the largest of ours has five million

# Text stays text: "NA", "None" and "?" are values, and only nothing is missing.
AS_WRITTEN: dict[str, Any] = {
    "keep_default_na": False,
    "na_values": [""],
    "low_memory": False,
}


@dataclass(frozen=True)
class Part:
    """A table in a download: the names of the archives around it and its own; no name is the file itself."""

    path: tuple[str, ...] = ()
    sha256: str | None = None


@dataclass(frozen=True)
class Origin:
    """Where a dataset is published, and how its file becomes a table."""

    url: str
    read: Callable[[list[bytes]], pd.DataFrame]
    parts: tuple[Part, ...] = (Part(),)


def unpack(origin: Origin, file: IO[bytes], where: object) -> tuple[pd.DataFrame, str]:
    """The table in a publisher's file and the digest of its parts, each checked where one is known."""
    try:
        contents = [_content(file, part.path) for part in origin.parts]
    except Exception as error:  # foreign bytes: zipfile and zlib fail in a dozen ways, and all mean the same
        raise DatasetDamaged(f"{where} cannot be unpacked: {error}") from error
    for part, content in zip(origin.parts, contents, strict=True):
        found = hashlib.sha256(content).hexdigest()
        if part.sha256 not in (None, found):
            raise DatasetDamaged(
                f"{'/'.join(part.path) or 'the table'} in {where} is not the published one: its sha256 is {found}, "
                f"expected {part.sha256}"
            )
    digest = hashlib.sha256(b"".join(contents)).hexdigest()
    try:
        return origin.read(contents), digest
    except Exception as error:  # as above, with pandas and pyarrow
        raise DatasetDamaged(f"{where} cannot be read as a table: {error}") from error


def delimited(separator: str, names: tuple[str, ...] | None = None) -> Callable[[list[bytes]], pd.DataFrame]:
    """A reader of delimited text; without names the first line holds them."""

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
    """A reader of Adult's two files; the second begins with a remark and ends every label with a full stop."""

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
        both = pd.concat(frames, ignore_index=True)
        return both.assign(**{names[-1]: both[names[-1]].str.rstrip(".")})

    return read


def openml(names: tuple[str, ...] | None = None) -> Callable[[list[bytes]], pd.DataFrame]:
    """A reader of OpenML's Parquet files of numbers, in which whole numbers may be floats, and labels text."""

    def read(contents: list[bytes]) -> pd.DataFrame:
        import pandas as pd

        frame = pd.read_parquet(io.BytesIO(contents[0]))
        frame = frame if names is None else frame.set_axis(list(names), axis=1)
        return frame.apply(lambda column: _whole(pd.to_numeric(column.astype(object))))

    return read


def repaired(contents: list[bytes]) -> pd.DataFrame:
    """OpenML's run or walk, with the lost decimal points put back.

    There every value that was 1 or more away from zero is ten times too large, so none lies between 1 and 10. The
    sensor wrote four decimals.
    """
    frame = openml()(contents)
    measured = frame.select_dtypes("float")
    return frame.assign(**measured.where(measured.abs() < 10, (measured / 10).round(4)))


def _whole(column: pd.Series) -> pd.Series:
    return column.astype("int64") if (column % 1 == 0).all() else column


def _content(file: IO[bytes], path: tuple[str, ...]) -> bytes:
    """The bytes of a part; the members of an archive are found by their last name, in whatever folder they lie."""
    file.seek(0)
    if not path:
        return _limited(file)
    with zipfile.ZipFile(file) as archive:
        held = [name for name in archive.namelist() if name.rsplit("/", 1)[-1] == path[0]]
        if not held:
            raise ValueError(f"it holds {', '.join(archive.namelist()[:10])}; expected {path[0]}")
        with archive.open(held[0]) as member:
            content = _limited(member)
    if path[1:]:
        return _content(io.BytesIO(content), path[1:])
    return content.replace(b"\r\n", b"\n")


def _limited(file: IO[bytes]) -> bytes:
    content = file.read(PART_LIMIT + 1)
    if len(content) > PART_LIMIT:
        raise ValueError(f"it is larger than {PART_LIMIT:,} bytes")
    return content
