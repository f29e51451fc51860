"""Count the files of the package that a fit and a simulation pass through.

    python tools/trace_files.py [--list]

A file counts if one of its functions is called. Every call is made once before it is traced: what runs when modules are
imported is no part of it.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import peerbayes as pb

PACKAGE = Path(pb.__file__).parent


def files_of(call: Callable[[], object]) -> list[str]:
    """Return the files of the package of which a call runs functions, by their paths within the package."""
    call()
    files: set[str] = set()

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            files.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    paths = (Path(file) for file in files)
    return sorted(path.relative_to(PACKAGE).as_posix() for path in paths if PACKAGE in path.parents)


def calls() -> dict[str, Callable[[], object]]:
    """Return the calls that are traced by name: with defaults, on a table of three classes."""
    rng = np.random.default_rng(0)
    y = np.arange(150) % 3
    X = rng.normal(y[:, None], 1.0, (150, 4))
    return {
        "fit": lambda: pb.MixedNB().fit(X, y),
        "simulation": lambda: pb.simulate(X, y, peers=6, rows_per_peer=20, rounds=8, strategy="exact"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="also name the files")
    options = parser.parse_args()
    for name, call in calls().items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            files = files_of(call)
        print(f"{name}: {len(files)} files")
        if options.list:
            print("\n".join(f"    {file}" for file in files))


if __name__ == "__main__":
    main()
