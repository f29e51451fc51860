"""Datasets on disk: the cache, downloads, and the formats they come in."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import ipaddress
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage, HTTPResponse
from pathlib import Path
from time import sleep
from typing import IO, TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import numpy as np

from peerbayes.data.datasets.entries import AS_WRITTEN
from peerbayes.data.files import write
from peerbayes.errors import DatasetDamaged, DatasetError, DownloadFailed

if TYPE_CHECKING:
    import pandas as pd


# --- files of datasets on this machine: the user's folder, and a cache in which every file has a record of its digest
# `letter_recognition.parquet` lies beside `letter_recognition.parquet.json`, which holds the sha256 of the file,
# where it came from, and the sha256 of the publisher's table. A file is used only if it matches its record. Where the
# registry has no digest of the publisher's table, every later download must match the record of the first: trust on
# first use. It finds damage and change, not malice: whoever can write the file can write the record.


@dataclass(frozen=True)
class Places:
    """The folders of dataset files: one that the user names, and the cache."""

    folder: Path | None
    cache: Path

    def held(self, name: str) -> Path | None:
        """Return the path of a file in the first of the folders that has it; None: neither does."""
        paths = (folder / name for folder in (self.folder, self.cache) if folder is not None)
        return next((path for path in paths if path.is_file()), None)


def places() -> Places:
    """Return the folder PEERBAYES_DATA, which must exist, and PEERBAYES_CACHE or the system's folder for caches."""
    data, cache = os.environ.get("PEERBAYES_DATA"), os.environ.get("PEERBAYES_CACHE")
    if data and not Path(data).is_dir():
        raise DatasetError(f"PEERBAYES_DATA is {data!r}; expected a folder. Correct it, or unset it")
    from platformdirs import user_cache_path

    folder = Path(data) if data else None
    return Places(folder, Path(cache) if cache else user_cache_path("peerbayes", appauthor=False))


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


# --- downloads over HTTPS: streamed, limited in size, complete or refused

LIMIT = 64 * 2**20  # bytes; the largest download has about four million
TIMEOUT = 30  # seconds without a byte
PAUSES = (1, 3)  # seconds before the second and the third attempt
CHUNK = 2**16
BUSY = (408, 425, 429, 500, 502, 503, 504)  # status codes after which a retry makes sense

Progress = Callable[[int, int | None], None]  # bytes so far, bytes in total if the server says


class _Transient(Exception):
    """A fault that may not recur at the next attempt."""


def download(url: str, file: IO[bytes], progress: Progress | None = None, limit: int = LIMIT) -> None:
    """Write the content of `url` to `file`, or raise DownloadFailed; transient faults are retried."""
    if not allowed(url):
        raise DownloadFailed(f"{url} is not https; nothing is downloaded unencrypted")
    for attempt in range(len(PAUSES) + 1):
        if attempt:
            sleep(PAUSES[attempt - 1])
        file.seek(0)
        file.truncate()
        try:
            return _attempt(url, file, progress, limit)
        except _Transient as error:
            fault = error
    raise DownloadFailed(f"{url}: {fault} (tried {len(PAUSES) + 1} times)") from fault


def allowed(url: str) -> bool:
    """Return whether a URL may be fetched: over https, or over http from this machine itself."""
    address = urlsplit(url)
    return address.scheme == "https" or (address.scheme == "http" and _loopback(address.hostname or ""))


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _SafeRedirects(HTTPRedirectHandler):
    """Follow redirects, but never from https to anything else."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        if not allowed(newurl) or (req.type == "https" and urlsplit(newurl).scheme != "https"):
            raise DownloadFailed(f"{req.full_url} redirects to {newurl}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _attempt(url: str, file: IO[bytes], progress: Progress | None, limit: int) -> None:
    with _opened(url) as response:
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdigit() else None
        if (total or 0) > limit:
            raise DownloadFailed(f"{url} has {total:,} bytes; expected at most {limit:,}")
        done = 0
        while chunk := _chunk(response):
            done += len(chunk)
            if done > limit:
                raise DownloadFailed(f"{url} sends more than the expected maximum of {limit:,} bytes")
            file.write(chunk)
            if progress is not None:
                progress(done, total)
    if total is not None and done < total:
        raise _Transient(f"the connection ended after {done:,} of {total:,} bytes")


def _opened(url: str) -> HTTPResponse:
    """Return the response to a request; raise transient faults apart from permanent ones."""
    request = Request(url, headers={"User-Agent": "peerbayes"})
    try:
        return build_opener(_SafeRedirects).open(request, timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        reason = f"the server answered {error.code} {error.reason}"
        if error.code in BUSY:
            raise _Transient(reason) from error
        raise DownloadFailed(f"{url}: {reason}") from error
    except URLError as error:
        raise _Transient(f"no connection to {urlsplit(url).hostname}: {error.reason}") from error
    except (OSError, HTTPException) as error:
        raise _Transient(f"no answer from {urlsplit(url).hostname}: {error!r}") from error


def _chunk(response: HTTPResponse) -> bytes:
    try:
        return response.read1(CHUNK)
    except (OSError, HTTPException) as error:
        raise _Transient(f"the connection broke: {error!r}") from error


# --- tables as bytes: Parquet and .npz in folders and caches, and CSV for imports

SUFFIXES = (".parquet", ".npz", ".csv")


def need_parquet() -> None:
    """Refuse early, before anything is downloaded, where pyarrow is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise DatasetError(
            "files of datasets are Parquet, which needs pyarrow: pip install 'peerbayes[data]'"
        )


def decode(content: bytes, suffix: str, label: str, where: object) -> pd.DataFrame:
    """Return the table of a file, by its suffix; the arrays X and y of an .npz become f0, f1, … and the label."""
    import pandas as pd

    if suffix == ".parquet":
        need_parquet()
    try:
        if suffix == ".parquet":
            return pd.read_parquet(io.BytesIO(content))
        return _arrays(content, label) if suffix == ".npz" else _csv(content)
    except Exception as error:  # untrusted bytes: pandas, pyarrow and zipfile fail in many ways
        raise DatasetDamaged(f"{where} cannot be read as {suffix}: {error}") from error


def encode(frame: pd.DataFrame, suffix: str) -> bytes:
    """Return the bytes of a table, the label last, for a file of the cache."""
    buffer = io.BytesIO()
    if suffix == ".parquet":
        frame.to_parquet(buffer, index=False)
    else:
        features, labels = frame.iloc[:, :-1].to_numpy(), frame.iloc[:, -1].to_numpy()
        np.savez(buffer, X=_halved(features), y=labels)
    return buffer.getvalue()


def _csv(content: bytes) -> pd.DataFrame:
    import pandas as pd

    first = content.partition(b"\n")[0]
    separator = max((",", ";", "\t"), key=lambda mark: first.count(mark.encode()))
    return pd.read_csv(io.BytesIO(content), sep=separator, encoding="utf-8-sig", **AS_WRITTEN)


def _arrays(content: bytes, label: str) -> pd.DataFrame:
    import pandas as pd

    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        features, labels = arrays["X"], arrays["y"]
    if features.ndim != 2 or features.dtype.kind != "f" or labels.shape != features.shape[:1]:
        raise ValueError(
            f"X is {features.dtype} {features.shape} and y {labels.shape}; expected floats [n, D] and [n]"
        )
    # float16 is for storage, not for computing: its sums overflow at 65,504.
    wide: Any = features.astype(np.float32) if features.dtype == np.float16 else features
    frame = pd.DataFrame(wide, columns=[f"f{index}" for index in range(features.shape[1])])
    frame[label] = labels.astype(np.int64) if labels.dtype.kind in "iu" else labels
    return frame


def _halved(features: np.ndarray) -> np.ndarray:
    """Return the features as float16 where that loses nothing."""
    with np.errstate(over="ignore"):
        half = features.astype(np.float16)
    return half if np.array_equal(half, features) else features
