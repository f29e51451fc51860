"""Where the files that a run names are: on this machine while it is in memory, from its folder where it is saved."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

Places = dict[str, str]  # absolute paths of files, by the paths that a run names them by


def places_of(names: Iterable[str]) -> Places:
    """Return where files are, by their paths from here."""
    return {name: str(Path(name).absolute()) for name in names if Path(name).is_file()}


def relative_paths(places: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the relative paths of files from a folder that may be given to others: none names a home or the machine.

    So there is none to a file that has no folder but the root, or folders of homes, in common with the folder.
    """
    start, homes = str(Path(folder).resolve()), [str(above) for above in Path.home().parents]
    relative = {}
    for name, absolute in places.items():
        place = os.path.normpath(absolute)
        try:
            common = os.path.commonpath([start, place])
        except ValueError:  # on another drive
            continue
        if common != Path(common).anchor and common not in homes:
            relative[name] = Path(os.path.relpath(place, start)).as_posix()
    return relative


def from_folder(names: Iterable[str], relative: Mapping[str, str], folder: Path) -> Places:
    """Return where files are, by their paths from elsewhere: at their relative paths from a run's folder, or in it."""
    start = Path(folder).resolve()
    places = {}
    for name in names:
        tried = [os.path.normpath(start / path) for path in (relative.get(name), Path(name).name) if path]
        if (there := first_there(tried)) is not None:
            places[name] = there
    return places


def first_there(candidates: Iterable[Path | str]) -> str | None:
    """Return the first of these that is a file."""
    return next((str(path) for path in candidates if Path(path).is_file()), None)
