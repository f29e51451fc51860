"""Folders of one owner whose networks learn from the same rows: which they are, and one decision at a time about them.

Owners say it in `same_rows` of peer.toml, and folders that such a folder names belong to them as well. What is spent
on the rows is decided under a lock of every folder, taken in the order of their paths: of two runs that are about to
begin, in one process or in two, the second one sees what the first one may spend.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from peerbayes.errors import NeedsPerson
from peerbayes.peer.state.folder import Home
from peerbayes.peer.state.peer_settings import Settings, is_url

LOCK = "rows.lock"
IN_PART = ".restored-in-part"  # a file in a folder until all of a backup is back


def folders_over_rows(home: Home) -> list[Path]:
    """Return this folder and all others over its rows, as their owner says; NeedsPerson where one cannot be counted."""
    folders, seen = [home.folder], {home.folder.resolve()}
    for folder in folders:  # grows meanwhile
        settings_path = Home(folder).settings_path
        if folder != home.folder:
            _refuse_incomplete(home, folder)
        elif not settings_path.exists():
            break
        for other in map(Path, Home(folder).settings().same_rows):
            if other.resolve() not in seen:
                seen.add(other.resolve())
                folders.append(other)
    return folders


def _refuse_incomplete(home: Home, folder: Path) -> None:
    """Refuse a folder whose ledger is not there, or not as a whole."""
    says = f"{home.settings_path} says that {folder} has the same rows"
    if not folder.is_dir():
        raise NeedsPerson(
            f"{says}, and there is no such folder: what was released there cannot be counted. Correct same_rows"
        )
    if not Home(folder).settings_path.exists() or (folder / IN_PART).exists():
        raise NeedsPerson(
            f"{says}, and it has no peer, or a backup of it came back in part: what was released there cannot be "
            "counted. Correct same_rows, or restore the backup again"
        )


@contextlib.contextmanager
def locked(folders: Iterable[Path]) -> Iterator[None]:
    """Hold the locks of folders, so that nobody else decides what is spent on their rows."""
    with contextlib.ExitStack() as held:
        for folder in sorted({folder.resolve() for folder in folders}):
            descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            held.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def alone(home: Home) -> Iterator[None]:
    """Hold the locks of all folders over the rows of one."""
    with locked(folders_over_rows(home)):
        yield


def one_sided(home: Home) -> str:
    """Return which folder does not say in turn that it has the rows of this one, as a sentence; "": all do."""
    own = home.folder.resolve()
    for folder in folders_over_rows(home)[1:]:
        if own not in {other.resolve() for other in folders_over_rows(Home(folder))}:
            return (
                f"{home.settings_path} says that {folder} has the same rows, and {Home(folder).settings_path} does not "
                f"say so of {home.folder}: what is released here would not count there. Add it to same_rows there"
            )
    return ""


def undeclared(home: Home, beside: Sequence[Home]) -> str:
    """Return which other folder reads the same data though nobody says that it has the same rows; "": none does."""
    declared = {folder.resolve() for folder in folders_over_rows(home)}
    for other in beside:
        if other.folder.resolve() in declared or not reads_same(home.settings(), other.settings()):
            continue
        return (
            f"{home.folder} and {other.folder} read the same data, and same_rows in {home.settings_path} does not name "
            f"{other.folder}: what is released there does not count here. Name each in same_rows of the other"
        )
    return ""


def reads_same(one: Settings, other: Settings) -> bool:
    """Return whether two peers read the same file, or a table of one database in common."""
    if is_url(one.data) or is_url(other.data):
        if one.data.rpartition("@")[2] != other.data.rpartition("@")[2]:  # whoever logs in
            return False
        return one.query == other.query or bool(_tables(one.query) & _tables(other.query))
    try:
        return Path(one.data).samefile(other.data)
    except OSError:
        return Path(one.data).resolve() == Path(other.data).resolve()


def _tables(query: str | None) -> set[str]:
    """Return the names that follow FROM and JOIN in SQL, without their schema."""
    names = re.findall(r"\b(?:from|join)\s+([\w.\"`\[\]]+)", query or "", re.IGNORECASE)
    return {name.rpartition(".")[2].strip('"`[]').lower() for name in names}
