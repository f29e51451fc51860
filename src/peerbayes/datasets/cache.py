"""Files of datasets on this machine: the user's folder, and a cache in which every file has a record of its digest.

`letter_recognition.parquet` lies beside `letter_recognition.parquet.json`, which holds the sha256 of the file, where
it came from, and the sha256 of the publisher's table. A file is used only if it matches its record. Where the registry
has no digest of the publisher's table, every later download must match the record of the first: trust on first use. It
finds damage and change, not malice: whoever can write the file can write the record.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from peerbayes.datasets.errors import DatasetDamaged, DatasetError
from peerbayes.files import write


@dataclass(frozen=True)
class Places:
    """The folders of dataset files: one that the user names, and the cache."""

    folder: Path | None
    cache: Path

    def file_in_folder(self, name: str) -> Path | None:
        """Return the file in the user's folder, if it exists."""
        return self.folder / name if self.folder is not None and (self.folder / name).is_file() else None

    def file_in_cache(self, name: str) -> Path | None:
        """Return the file in the cache, if it exists."""
        return self.cache / name if (self.cache / name).is_file() else None


def places(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Places:
    """Return the folder PEERBAYES_DATA and the cache; refuse a PEERBAYES_DATA that does not exist."""
    folder = Path(environment["PEERBAYES_DATA"]) if environment.get("PEERBAYES_DATA") else None
    if folder is not None and not folder.is_dir():
        raise DatasetError(f"PEERBAYES_DATA is {str(folder)!r}; expected a folder. Correct it, or unset it")
    return Places(folder, cache_folder(environment, platform))


def cache_folder(environment: Mapping[str, str], platform: str) -> Path:
    """Return PEERBAYES_CACHE, or the system's folder for caches."""
    if environment.get("PEERBAYES_CACHE"):
        return Path(environment["PEERBAYES_CACHE"])
    if platform == "win32" and environment.get("LOCALAPPDATA"):
        return Path(environment["LOCALAPPDATA"]) / "peerbayes" / "Cache"
    if platform == "darwin":
        return Path.home() / "Library" / "Caches" / "peerbayes"
    # The XDG specification: a path that is not absolute is to be ignored.
    base = environment.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "peerbayes"


def record_of(path: Path) -> Path:
    """Return the path of the record beside a file of the cache."""
    return path.with_name(f"{path.name}.json")


def verified(path: Path) -> bytes:
    """Return the content of a file of the cache, after checking it against its record."""
    content, recorded = path.read_bytes(), remembered(path).get("sha256")
    if recorded is None:
        raise DatasetDamaged(f"{path} has no record of its digest ({record_of(path).name})")
    if (digest := hashlib.sha256(content).hexdigest()) != recorded:
        raise DatasetDamaged(f"{path} was altered: its sha256 is {digest}, expected {recorded}")
    return content


def remembered(path: Path) -> dict[str, str]:
    """Return the record of a file, empty where there is none; refuse one that cannot be read as damaged."""
    record = record_of(path)
    if not record.exists():
        return {}
    try:
        entries = json.loads(record.read_text(encoding="utf-8"))
        return {name: entries[name] for name in ("sha256", "source", "origin_sha256") if name in entries}
    except (OSError, ValueError, TypeError) as error:
        raise DatasetDamaged(f"{record} cannot be read: {error}. Remove it and fetch again") from error


def write_recorded(path: Path, content: bytes, source: str, origin_sha256: str | None) -> None:
    """Write a file and its record, each atomically."""
    record = {"sha256": hashlib.sha256(content).hexdigest(), "source": source}
    if origin_sha256 is not None:
        record["origin_sha256"] = origin_sha256
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, content)
        write(record_of(path), json.dumps(record, indent=2).encode())
    except OSError as error:
        raise DatasetError(
            f"{path.parent} cannot be written: {error.strerror}. Set PEERBAYES_CACHE to a writable folder"
        ) from error
