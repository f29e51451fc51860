"""What a result was made with: the version and commit of this package, and those of what it stands on."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path

CHANGED = " changed"  # ends the version of code with changes that no commit holds
STANDS_ON = ("numpy", "scipy", "scikit-learn", "pandas")


@cache
def code_version() -> str:
    """The version of this package, and the commit where it lies in a repository."""
    from peerbayes import __version__

    root = Path(__file__).parents[2]
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", "src")
    except (OSError, subprocess.CalledProcessError):
        return __version__
    return f"{__version__} {head}{CHANGED if changed else ''}"


def made() -> dict[str, str]:
    """When a run was made, and by which versions."""
    return {
        "began": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "peerbayes": code_version(),
        "python": platform.python_version(),
        **{name: version(name) for name in STANDS_ON},
    }


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()
