"""Errors that need a person: reported in one sentence, with exit code 2, so that no service restarts the peer."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peerbayes.errors import PeerbayesError
from peerbayes.peers.errors import NeedsPerson
from peerbayes.peers.supervision import TaskFailed

# System errors of files, and what to do about them.
OF_FILES = {
    errno.EACCES: "this user may not use it: give it to the user that runs the peer with `chown`, and see its mode",
    errno.EPERM: "this user may not use it: give it to the user that runs the peer with `chown`, and see its mode",
    errno.EROFS: "it is on a file system that is read-only: make that writable, or move the peer's folder",
    errno.ENOENT: "it does not exist: bring it back, or correct its name in peer.toml",
    errno.ENOTDIR: "a part of its path is not a folder: correct its name",
    errno.EISDIR: "it is a folder; expected a file: correct its name",
}

# The same for a state, by the error codes of SQLite.
OF_STATES = {
    sqlite3.SQLITE_READONLY: OF_FILES[errno.EROFS],
    sqlite3.SQLITE_CANTOPEN: OF_FILES[errno.EACCES],
    sqlite3.SQLITE_PERM: OF_FILES[errno.EACCES],
    sqlite3.SQLITE_CORRUPT: "it is damaged: leave the run with `peerbayes node leave`, and keep a copy",
    sqlite3.SQLITE_NOTADB: "it is damaged: leave the run with `peerbayes node leave`, and keep a copy",
}


@contextmanager
def person_needed(folder: Path) -> Iterator[None]:
    """Turn errors that only a person can resolve into a `NeedsPerson` with a plain sentence."""
    try:
        yield
    except (NeedsPerson, TaskFailed):  # a failed task may succeed after a restart
        raise
    except PeerbayesError as error:  # peerbayes' own errors would occur again after a restart
        raise NeedsPerson(str(error)) from error
    except OSError as error:
        if (advice := OF_FILES.get(error.errno or 0)) is None:
            raise
        raise NeedsPerson(f"{error.filename or folder} cannot be used: {advice}") from error
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None) or 0
        if (advice := OF_STATES.get(code & 0xFF)) is None:
            raise
        raise NeedsPerson(f"the state in {folder} cannot be used: {advice}") from error
