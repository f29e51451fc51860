"""The provenance of a result: the version and commit of this package, and the versions of its dependencies."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path

CHANGED = " changed"  # ends the version of code with uncommitted changes
STANDS_ON = ("numpy", "scipy", "scikit-learn", "pandas")


@cache
def code_version() -> str:
    """Return the version of this package and, in a repository, the commit."""
    from peerbayes import __version__

    root = Path(__file__).parents[2]
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", "src")
    except (OSError, subprocess.CalledProcessError):
        return __version__
    return f"{__version__} {head}{CHANGED if changed else ''}"


def made() -> dict[str, str]:
    """Return the time and the versions that a run is made with."""
    return {
        "began": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "peerbayes": code_version(),
        "python": platform.python_version(),
        **{name: version(name) for name in STANDS_ON},
    }


def _git(root: Path, *arguments: str) -> str:
    process = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True)
    return process.stdout.strip()
