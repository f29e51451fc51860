"""What can go wrong with a source of rows, as a branch of the tree in `peerbayes.errors`.

PeerbayesError
└── SourceError   (also a ValueError)  rows that cannot be read, or cannot be used as they are
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from peerbayes.errors import PeerbayesError


class SourceError(PeerbayesError, ValueError):
    """Rows that cannot be read, or cannot be used as they are."""


def check_names(names: Sequence[str], wanted: Sequence[str], where: str) -> None:
    """Refuse a table that names a column twice or not at all, or lacks one; what nobody wants may have any name."""
    repeated = sorted({name for name in names if names.count(name) > 1 and (name in wanted or not wanted)})
    if repeated and repeated != [""]:
        raise SourceError(
            f"{where} has several columns named {', '.join(map(repr, repeated[:5]))}; rename all but one "
            "(in SQL with AS)"
        )
    if "" in names and not wanted:
        raise SourceError(
            f"column {names.index('') + 1} of {where} has no name; name it, or leave it out "
            "(a row index of pandas: index=False)"
        )
    missing = [name for name in wanted if name not in names]
    if missing:
        raise lacking(missing, names, where)


def lacking(missing: Sequence[str], names: Sequence[str], where: str) -> SourceError:
    """The error for columns that are not there, with the names that come near."""
    folded = {str(name).strip().casefold(): name for name in names}
    told = []
    for name in missing[:5]:
        close = difflib.get_close_matches(name.strip().casefold(), list(folded), n=1)
        told.append(f"{name!r} (did you mean {folded[close[0]]!r}?)" if close else repr(name))
    more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
    rest = ", …" if len(names) > 20 else ""
    return SourceError(
        f"{where} has no column {', '.join(told)}{more}; it has {', '.join(map(str, names[:20]))}{rest}"
    )


def one_line(error: BaseException) -> str:
    """What an error of another library says, without its line breaks."""
    return " ".join(str(error).split())[:300] or type(error).__name__
