"""A backup of a peer's folder: one file, written while the peer runs, that proves to be whole.

It is a tar file, or one under a passphrase (`sealed_file`). Its last entry, the manifest, has the sha256 of every
other one and the peer's signature of all that. Rows are not in it, nor are logs for people: only what the folder alone
has.

State and audit log of a run grow while they are copied. The log is measured, then the state is copied as SQLite has it
at one moment, then the log is copied as far as it was measured, or as the state knows it, whichever is more: whatever
the copied log says was sent is in the copied state, as in a folder after a crash (`ledger.refuse_broken`).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from peerbayes.data import files
from peerbayes.data.files import printable
from peerbayes.errors import AlreadyThere, IdentityError, NeedsPerson, PeerbayesError, PeerError
from peerbayes.peer.agreement.column_facts import canonical
from peerbayes.peer.identity import keys
from peerbayes.peer.state import sealed_file
from peerbayes.peer.state.audit_log import Tail
from peerbayes.peer.state.folder import Home, leave_command
from peerbayes.peer.state.store import NoState, Store

__all__ = ["Backup", "Manifest", "back_up", "opened"]

FORMAT = 1
MANIFEST = "manifest.json"
PURPOSE = b"peerbayes backup\n"  # signed along: no other signature of a peer passes for a backup's
LARGEST_MANIFEST = 64 << 20
MOST_FILES = 100_000
BLOCK = 1 << 20

STATE, AUDIT = "state.sqlite", "audit.jsonl"  # of a run: grow while they are copied
# Of the process; for people, rotated or not; and rows with which runs go on.
LEFT_OUT = ("peer.lock", "rows.lock", "links.json", "peer.log*", "metrics.prom", "rows.kept")
TABLES = (".csv", ".parquet")  # rows: whoever has them keeps them elsewhere
SCRATCH = ".backup-"  # begins the name of a folder with copies
BESIDE = ("-wal", "-shm", "-journal")  # of SQLite: in the copy of its file


@dataclass(frozen=True)
class Manifest:
    """What a backup says of itself."""

    peer: str
    network: str
    at: float
    """Seconds since 1970."""
    with_key: bool
    files: dict[str, tuple[int, str]]
    """Size and sha256 by path in the folder."""

    def pack(self, key_pem: bytes) -> bytes:
        """Return the signed text."""
        plain = {"format": FORMAT, **asdict(self)}
        return canonical(
            {"manifest": plain, "signature": keys.sign(key_pem, PURPOSE + canonical(plain)).hex()}
        )

    @classmethod
    def parse(cls, content: bytes, certificate_pem: bytes) -> Manifest:
        """Return the manifest of a text that the owner of a certificate signed."""
        try:
            document = json.loads(content)
            plain, signature = dict(document["manifest"]), bytes.fromhex(document["signature"])
            if canonical(document) != content:
                raise ValueError("it is in another form than ours")
            if plain.get("format") != FORMAT:
                raise PeerError(
                    f"the backup's format is not {FORMAT}; update with `pip install -U peerbayes`"
                )
            keys.verify(certificate_pem, signature, PURPOSE + canonical(plain))
            files = {str(path): (int(size), str(digest)) for path, (size, digest) in plain["files"].items()}
            return cls(
                str(plain["peer"]), str(plain["network"]), float(plain["at"]), bool(plain["with_key"]), files
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, IdentityError) as error:
            raise PeerError(
                f"the backup was changed, or was not made by its peer: {printable(str(error)):.200}. Take another one"
            ) from error


# --- making one


def back_up(
    home: Home, target: Path, with_key: bool = True, passphrase: str | None = None, overwrite: bool = False
) -> Manifest:
    """Write a backup of a folder, also while the peer runs. The file is there as a whole or not at all.

    An earlier backup of the same peer is replaced; any other file only if it may be overwritten.
    """
    network, key = home.roster().network, home.read_key()
    if target.exists() and not target.is_file():
        raise PeerError(f"{target} is not a file; name the file to write")
    if target.resolve().is_relative_to(home.folder.resolve()):
        raise PeerError(
            f"{target} is in the folder that it would be a backup of; put it on another disk, or machine"
        )
    if not target.parent.is_dir():
        raise PeerError(f"{target.parent} is not a folder; is a disk not mounted? Name one that exists")
    name = home.settings().name
    if not overwrite and os.path.lexists(target) and not _is_of(target, name, network, passphrase):
        raise AlreadyThere(
            f"{target} exists already, and is no backup of {name} in {network} that opens in the same way: choose "
            "another name, or pass overwrite=True (--overwrite on the command line)"
        )
    with files.replacing(target, mode=0o600) as file:
        manifest = _written(home, key, network, file, with_key, passphrase)
    files.sync(target.parent)
    return manifest


def _is_of(path: Path, peer: str, network: str, passphrase: str | None) -> bool:
    """Return whether a file says that it is a backup of a peer; who wrote it is not checked."""
    unreadable = OSError, PeerError, tarfile.TarError, ValueError, TypeError, KeyError, RecursionError
    said = None
    with (
        contextlib.suppress(*unreadable),
        path.open("rb") as file,
        _read(path, file, passphrase) as tar,
    ):
        for info in tar:
            if info.name == MANIFEST and info.size <= LARGEST_MANIFEST and (reader := tar.extractfile(info)):
                manifest = json.load(reader)["manifest"]
                said = manifest["peer"], manifest["network"]
    return said == (peer, network)


def _written(
    home: Home, key: bytes, network: str, file: BinaryIO, with_key: bool, passphrase: str | None
) -> Manifest:
    files: dict[str, tuple[int, str]] = {}
    with contextlib.ExitStack() as resources:
        stream: Any = file if passphrase is None else resources.enter_context(_sealed(file, passphrase))
        tar = resources.enter_context(tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT))
        scratch = resources.enter_context(_scratch(home.folder))
        for path, name in _content(home, with_key, scratch):
            files[name] = _add(tar, path, name)
        name, at = home.settings().name, time.time()
        manifest = Manifest(name, network, at, with_key, files)
        content = manifest.pack(key)
        info = _entry(MANIFEST, len(content))
        tar.addfile(info, io.BytesIO(content))
    return manifest


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """Yield an empty folder for copies; those that killed backups left behind are removed a day later."""
    for left in folder.glob(f"{SCRATCH}*"):
        if left.stat().st_mtime < time.time() - 86400:
            _remove(left)
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=folder) as scratch:
        yield Path(scratch)


@contextlib.contextmanager
def _sealed(file: BinaryIO, passphrase: str) -> Iterator[sealed_file.Sealed]:
    sealed = sealed_file.Sealed(file, passphrase)
    yield sealed
    sealed.close()  # not after an error: the file is given up


def _content(home: Home, with_key: bool, scratch: Path) -> Iterator[tuple[Path, str]]:
    """Yield the files of a folder and their names in the backup, each whole: a state comes just before its log."""
    data = Path(home.settings().data)
    for folder, folders, names in os.walk(home.folder):
        here = Path(folder)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        present = [name for name in sorted(names) if not (here / name).is_symlink()]
        for name in sorted(present, key=lambda name: (name == AUDIT, name)):
            path, inside = here / name, str(PurePosixPath((here / name).relative_to(home.folder)))
            if (
                any(fnmatch(name, pattern) for pattern in LEFT_OUT)
                or name.startswith(".")
                or name.endswith((*TABLES, *BESIDE))
                or path == data
            ):
                continue
            if inside == home.key_path.name and not with_key:
                continue
            if name == STATE:
                yield from _of_run(path, inside, scratch)
            elif name == AUDIT and (here / STATE).exists():
                continue  # with its state
            elif name.endswith(".sqlite"):
                yield _copied(path, scratch / "copy.sqlite"), inside
            elif name.startswith("audit") and name.endswith(".jsonl"):
                yield _lines(path, scratch / "copy.jsonl", _complete(path)), inside
            elif path.is_file():
                yield path, inside


def _of_run(path: Path, inside: str, scratch: Path) -> Iterator[tuple[Path, str]]:
    """Yield a state and its log so that they belong together."""
    audit = path.with_name(AUDIT)
    measured = _complete(audit)
    state = _copied(path, scratch / "copy.sqlite")
    yield state, inside
    if audit.exists():
        size = max(measured, _known(state, audit))
        yield _lines(audit, scratch / "copy.jsonl", size), str(PurePosixPath(inside).with_name(AUDIT))


def _complete(path: Path) -> int:
    """Return the bytes of the complete lines of a log; 0 where there is none."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            begin = max(0, end - BLOCK)
            file.seek(begin)
            if (newline := file.read(end - begin).rfind(b"\n")) >= 0:
                return begin + newline + 1
            end = begin
    return 0


def _known(state: Path, audit: Path) -> int:
    """Return the bytes of the log that a state knows of."""
    mark = None
    with contextlib.suppress(NoState), contextlib.closing(Store(state, readonly=True)) as store:
        mark = store.logged()
    with audit.open("rb") as file:
        return sum(len(line) for line, _ in zip(file, range(mark.lines if mark else 0), strict=False))


def _copied(path: Path, target: Path) -> Path:
    """Copy a SQLite file as it is at one moment, also while it is being written."""
    target.unlink(missing_ok=True)
    with (
        contextlib.closing(
            sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=60)
        ) as source,
        contextlib.closing(sqlite3.connect(target)) as copy,
    ):
        try:
            source.backup(copy)
        except sqlite3.DatabaseError as error:
            raise PeerError(
                f"{path} cannot be copied: {error}; it is damaged. Set it aside with "
                f"`{leave_command(path.parent)}`, and keep a copy"
            ) from error
    return target


def _lines(path: Path, target: Path, size: int) -> Path:
    """Copy the first bytes of a log."""
    with path.open("rb") as source, target.open("wb") as copy:
        while size > 0 and (block := source.read(min(BLOCK, size))):
            copy.write(block)
            size -= len(block)
    return target


def _add(tar: tarfile.TarFile, path: Path, name: str) -> tuple[int, str]:
    """Add a file; return its size and digest."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        reader = _Digesting(file)
        tar.addfile(_entry(name, size), reader)
    return size, reader.digest.hexdigest()


class _Digesting:
    """A file whose bytes are digested while they are read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.digest = file, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        block = self._file.read(size)
        self.digest.update(block)
        return block


def _entry(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o600, int(time.time())
    return info


# --- reading one


@dataclass(frozen=True)
class Backup:
    """A backup that was read and found whole, as files in a folder."""

    manifest: Manifest
    folder: Path


@contextlib.contextmanager
def opened(path: Path, beside: Path, passphrase: str | None = None) -> Iterator[Backup]:
    """Unpack a backup into a folder beside another one, on the same disk, once it is known to be whole."""
    if not path.is_file():
        raise NeedsPerson(
            f"there is no file {path}; expected a backup, as `peerbayes peer backup` wrote it: is its name right?"
        )
    beside.parent.mkdir(parents=True, exist_ok=True)
    for left in beside.parent.glob(f".{beside.name}.restoring-*"):  # of a restore that was killed
        _remove(left)
    folder = Path(tempfile.mkdtemp(prefix=f".{beside.name}.restoring-", dir=beside.parent))
    try:
        with path.open("rb") as file:
            yield Backup(_unpacked(path, file, folder, passphrase), folder)
    finally:
        _remove(folder)


def is_sealed(path: Path) -> bool:
    """Return whether a backup is under a passphrase."""
    with path.open("rb") as file:
        return file.read(len(sealed_file.MAGIC)) == sealed_file.MAGIC


def _read(path: Path, file: BinaryIO, passphrase: str | None) -> tarfile.TarFile:
    """Return the entries of a backup, to be read in their order; refuse one without its passphrase."""
    sealed = is_sealed(path)
    if sealed and passphrase is None:
        raise PeerError(f"{path} is under a passphrase; give it with --passphrase-file, or type it")
    if not sealed and passphrase is not None:
        raise PeerError(
            f"{path} is not under a passphrase, and one was given; is it the backup that you mean?"
        )
    stream: Any = file if passphrase is None else io.BufferedReader(sealed_file.Opened(file, passphrase))
    return tarfile.open(fileobj=stream, mode="r|")


def _unpacked(path: Path, file: BinaryIO, folder: Path, passphrase: str | None) -> Manifest:
    found: dict[str, tuple[int, str]] = {}
    content = b""
    try:
        with _read(path, file, passphrase) as tar:
            for info in tar:
                if content:
                    raise PeerError(
                        f"the backup goes on after its manifest, with {info.name!r:.80}; it was changed"
                    )
                reader = tar.extractfile(info) if info.isfile() else None
                if reader is None or len(found) > MOST_FILES or info.name in found:
                    raise PeerError(
                        f"{info.name!r:.80} in the backup is no file, or there twice; it was changed"
                    )
                if info.name == MANIFEST:
                    if info.size > LARGEST_MANIFEST:
                        raise PeerError("the backup's manifest is too large; it was changed")
                    content = reader.read()
                else:
                    found[info.name] = _extracted(reader, folder, info.name)
    except tarfile.TarError as error:
        raise PeerError(f"{path} is no backup, or it is cut off: {error}; take another one") from error
    certificate = folder / "peer.crt"
    if not content or not certificate.exists():
        raise PeerError(
            f"{path} is cut off, or no backup of a member: its manifest is missing; take another one"
        )
    manifest = Manifest.parse(content, certificate.read_bytes())
    if manifest.files != found:
        differing = sorted(set(manifest.files.items()) ^ set(found.items()))
        raise PeerError(f"{differing[0][0]!r:.80} in the backup is not what was backed up; take another one")
    _refuse_damaged(folder, manifest)
    return manifest


def _extracted(reader: Any, folder: Path, name: str) -> tuple[int, str]:
    """Write one file of a backup; refuse names that lead elsewhere."""
    parts = PurePosixPath(name).parts
    if (
        not parts
        or name.startswith("/")
        or any(part in ("..", ".") or part.startswith(".") for part in parts)
    ):
        raise PeerError(f"{name!r:.80} in the backup leads out of its folder; it was changed")
    target, digest, size = folder.joinpath(*parts), hashlib.sha256(), 0
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with os.fdopen(os.open(target, files.NEW_FILE, 0o600), "wb") as file:
        while block := reader.read(BLOCK):
            digest.update(block)
            size += len(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return size, digest.hexdigest()


def _refuse_damaged(folder: Path, manifest: Manifest) -> None:
    """Refuse a backup whose documents do not belong together, whatever the time."""
    home = Home(folder)
    try:
        settings, roster = home.settings(), home.roster()
        certificate, authority = home.certificate_path.read_bytes(), home.authority_path.read_bytes()
        issuers = roster.issuers(authority)
        keys.issued(certificate, authority, settings.name, issuers[1:])
        for log in folder.rglob(AUDIT):  # others were set aside, perhaps since they are damaged
            for _ in Tail(log).read():
                pass
    except PeerbayesError as error:
        raise PeerError(f"the backup of {printable(manifest.peer)} is not whole: {error}") from error
    if (settings.name, roster.network) != (manifest.peer, manifest.network):
        raise PeerError(
            f"the backup says it is of {manifest.peer!r:.80}, and has the settings of {settings.name}"
        )


def _remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
    folder.rmdir()
