"""Kernels compiled by numba on first use, and a folder for their machine code that is never missing.

numba keeps machine code beside the source, or in the user's cache folder, and refuses to define a function where it can
write to neither: in a read-only installation without a home directory. Kernels then keep it in a folder of the
system's temporary files that this user alone may write to, because what is read there is run; where there is none,
they are compiled in each process.

This module imports numba: import it only where it is needed.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba


def njit(*, cache: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Do what `numba.njit` does, but `cache` where machine code can be kept, instead of failing where it cannot."""

    def compiled(function: Callable[..., Any]) -> Any:
        if not cache:
            return numba.njit(**options)(function)
        try:
            return numba.njit(cache=True, **options)(function)
        except RuntimeError:  # numba found no folder
            folder = private_folder()
        if folder is None or str(folder) == numba.config.CACHE_DIR:  # the second: it was tried before
            return numba.njit(**options)(function)
        numba.config.CACHE_DIR = str(folder)
        return njit(cache=True, **options)(function)

    return compiled


def private_folder() -> Path | None:
    """Return a folder of temporary files that nobody else can write to, made if need be; None where there is none."""
    try:
        user = (
            os.getuid() if hasattr(os, "getuid") else "user"
        )  # Windows has a temporary folder for each user
        folder = Path(tempfile.gettempdir()) / f"peerbayes-kernels-{user}"
        folder.mkdir(mode=0o700, exist_ok=True)
        state = folder.lstat()
    except OSError:
        return None
    others_write = state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    private = not hasattr(os, "getuid") or (state.st_uid == os.getuid() and not others_write)
    return folder if stat.S_ISDIR(state.st_mode) and private else None
