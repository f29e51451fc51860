"""Downloads over HTTPS: streamed, limited in size, complete or refused."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from http.client import HTTPException, HTTPMessage, HTTPResponse
from time import sleep
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from peerbayes.datasets.errors import DownloadFailed

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
