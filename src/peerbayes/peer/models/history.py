"""Versions of a peer's model, in its folder: models/N/ with the model file and what is known of it.

A version is prepared in a folder of its own and renamed to its number, so it is there as a whole or not at all: the
folders themselves are the index, and no process can be killed between an entry and what it is about. Which version is
in use follows from the bytes of the file that applications read, which is replaced in one step.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import platform
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from peerbayes.data import files
from peerbayes.errors import ModelFileDamaged, ModelFileError

FOLDER = "models"
MODEL = "model.peerbayes"  # in the folder of a version, and in the peer's for applications
FACTS = "version.json"
DRAFT = ".draft-"  # begins the name of a folder that is being prepared
LARGEST_FACTS = 64 << 20  # bytes of what is known of a version


@dataclass(frozen=True)
class Version:
    """One version of a peer's model, and what is known of it."""

    number: int
    at: float
    """Seconds since 1970 when it was recorded."""
    network: str
    run: str
    """The run that made it: 64 digits."""
    rounds: int
    """Rounds that the run took."""
    model: str
    """sha256 of the model file."""
    data: str
    """Digest of this peer's training rows."""
    terms: str
    """The agreement, as TOML."""
    run_number: int | None = None
    verdict: Mapping[str, Any] | None = field(default=None, hash=False)
    figures: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Figures of all sites, before the run and after it, where the agreement has them."""
    privacy: Mapping[str, Any] | None = field(default=None, hash=False)
    """What the run spent, where the agreement has an epsilon."""
    approved: tuple[str, ...] = ()
    """Who approved the run, as its caller says."""
    approvals: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    """The signed approvals of the run: `name`, `at` in seconds since 1970, and `by`: the owner, or a consent of its."""
    on_rows: Mapping[str, Any] | None = field(default=None, hash=False)
    """ε that all runs over the same rows had released until then: `epsilon`, `delta` and `releases`."""
    software: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The versions of the software that made it, by name."""


def software() -> dict[str, str]:
    """Return the versions of this software, and of what its results depend on."""
    installed = {name: importlib.metadata.version(name) for name in ("peerbayes", "numpy", "scipy")}
    return {**installed, "python": platform.python_version()}


@dataclass(frozen=True)
class History:
    """The versions in a peer's folder."""

    home: Path

    @property
    def folder(self) -> Path:
        """The folder of all versions."""
        return self.home / FOLDER

    def path(self, number: int) -> Path:
        """Return the model file of a version."""
        return self.folder / str(number) / MODEL

    def numbers(self) -> list[int]:
        """Return the numbers of all versions, in order."""
        if not self.folder.is_dir():
            return []
        names = (path.name for path in self.folder.iterdir() if path.is_dir())
        return sorted(int(name) for name in names if name.isascii() and name.isdigit() and name[0] != "0")

    def versions(self) -> list[Version]:
        """Return all versions whose facts can be read, in order: a damaged one is in nobody's way."""
        return [*self._latest_first()][::-1]

    def _latest_first(self) -> Iterator[Version]:
        for number in reversed(self.numbers()):
            with contextlib.suppress(ModelFileError):
                yield self.version(number)

    def version(self, number: int) -> Version:
        """Return what is known of a version."""
        path = self.folder / str(number) / FACTS
        try:
            if path.stat().st_size > LARGEST_FACTS:
                raise ModelFileDamaged(
                    f"{path} has more than {LARGEST_FACTS >> 20} MB; expected a version's facts"
                )
            version = msgspec.json.decode(path.read_bytes(), type=Version)
        except FileNotFoundError as error:
            known = ", ".join(map(str, self.numbers())) or "none yet: a run that ends makes one"
            raise ModelFileError(
                f"there is no version {number} in {self.folder}; there are {known}"
            ) from error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ModelFileDamaged(f"{path} cannot be read: {error}; restore it from a backup") from error
        if version.number != number:
            raise ModelFileDamaged(
                f"{path} is of version {version.number}; expected {number}: was the folder renamed?"
            )
        return version

    def content(self, number: int) -> bytes:
        """Return the model file of a version, if it is still what was recorded."""
        version, path = self.version(number), self.path(number)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ModelFileError(
                f"{path} cannot be read: {error.strerror}; restore it from a backup"
            ) from error
        if _digest(content) != version.model:
            raise ModelFileDamaged(
                f"{path} is not the model that was recorded as version {number}: its digest is {_digest(content):.8}, "
                f"expected {version.model:.8}; restore it from a backup"
            )
        return content

    def in_use(self) -> int | None:
        """Return the version that applications read now: the latest of the same bytes; None: it is no version."""
        try:
            current = _digest((self.home / MODEL).read_bytes())
        except FileNotFoundError:
            return None
        return next((version.number for version in self._latest_first() if version.model == current), None)

    def record(self, model: Path | None = None, **facts: Any) -> Version | None:
        """Record a model as a new version; None: there is no model file.

        A run is recorded once with a model: a peer that starts again after its end adds no second version. Where facts
        have come since, they replace those of the version.

        model  the file; None: the one that applications read
        """
        try:
            content = (model or self.home / MODEL).read_bytes()
        except FileNotFoundError:
            return None
        numbers, digest = self.numbers(), _digest(content)
        # Other runs may have ended since.
        last = next((version for version in self._latest_first() if version.run == facts["run"]), None)
        if last is not None and last.model == digest:
            version = Version(number=last.number, at=last.at, model=digest, **facts)
            if version != last:
                files.write(self.folder / str(last.number) / FACTS, _packed(version))
            return version
        version = Version(number=(numbers or [0])[-1] + 1, at=time.time(), model=digest, **facts)
        self._publish(version, content)
        return version

    def use(self, number: int) -> Version:
        """Have applications read a version from now on; their file is replaced in one step."""
        content = self.content(number)
        files.write(self.home / MODEL, content)
        files.sync(self.home)
        return self.version(number)

    def back(self) -> Version:
        """Have applications read the version before the one in use, of those that are another model."""
        current = self.in_use()
        if current is None and not (self.home / MODEL).exists():
            chosen = (
                "choose a version with `peerbayes model use`"
                if self.numbers()
                else "a run that ends makes one"
            )
            raise ModelFileError(f"there is no model in {self.home} yet, so none comes before it; {chosen}")
        if current is None:
            raise ModelFileError(
                f"{self.home / MODEL} is no recorded version (a run may be under way), so none comes before it; choose "
                "one with `peerbayes model use`"
            )
        model = self.version(current).model
        earlier = [one.number for one in self.versions() if one.number < current and one.model != model]
        if not earlier:
            raise ModelFileError(
                f"no version before {current} has another model; there is none to go back to"
            )
        return self.use(earlier[-1])

    def _publish(self, version: Version, content: bytes) -> None:
        """Write a version's folder under another name, and rename it when it is complete."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        for left in self.folder.glob(
            f"{DRAFT}*"
        ):  # of a process that was killed: one at a time has the folder's lock
            shutil.rmtree(left, ignore_errors=True)
        draft = self.folder / f"{DRAFT}{secrets.token_hex(4)}"
        draft.mkdir(mode=0o700)
        try:
            files.write(draft / MODEL, content)
            files.write(draft / FACTS, _packed(version))
            files.sync(draft)
            draft.rename(self.folder / str(version.number))
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        files.sync(self.folder)


def _packed(version: Version) -> bytes:
    return files.as_json(asdict(version)).encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
