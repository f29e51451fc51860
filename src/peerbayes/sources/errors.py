"""The errors of sources of rows, a branch of the tree in `peerbayes.errors`.

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
    """Refuse a table with a repeated, unnamed or missing column; columns not in `wanted` may have any name."""
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
        raise missing_columns(missing, names, where)


def missing_columns(missing: Sequence[str], names: Sequence[str], where: str) -> SourceError:
    """Return the error for columns that do not exist, with suggestions of similar names."""
    folded = {str(name).strip().casefold(): name for name in names}
    listed = []
    for name in missing[:5]:
        close = difflib.get_close_matches(name.strip().casefold(), list(folded), n=1)
        listed.append(f"{name!r} (did you mean {folded[close[0]]!r}?)" if close else repr(name))
    suffix = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
    ellipsis = ", …" if len(names) > 20 else ""
    return SourceError(
        f"{where} has no column {', '.join(listed)}{suffix}; it has {', '.join(map(str, names[:20]))}{ellipsis}"
    )


def one_line(error: BaseException) -> str:
    """Return the message of another library's error, without its line breaks."""
    return " ".join(str(error).split())[:300] or type(error).__name__
