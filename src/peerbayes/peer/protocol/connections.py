"""Connections: TLS settings, failed handshakes, and how many descriptors there are for them."""

from __future__ import annotations

import atexit
import contextlib
import errno
import logging
import os
import re
import resource
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from peerbayes.errors import PeerError

# --- load gRPC so that it speaks TLS 1.3 and nothing older
# Its Python interface has no setting for the lowest version. But what it offers in TLS 1.2 is a list of cipher
# suites, read from the environment when it is loaded, and the suites of TLS 1.3 are another list. With a suite of
# pre-shared keys alone, of which there are none, no TLS 1.2 handshake succeeds on either side; TLS 1.3 is unaffected.

VARIABLE = "GRPC_SSL_CIPHER_SUITES"
NO_TLS_1_2 = "ECDHE-PSK-CHACHA20-POLY1305"


def grpc() -> Any:
    """Return the module `grpc`; refuse one that was loaded before by somebody who left TLS 1.2 on."""
    if "grpc" not in sys.modules:
        os.environ[VARIABLE] = NO_TLS_1_2
    elif os.environ.get(VARIABLE) != NO_TLS_1_2:
        raise PeerError(
            f"grpc was imported before peerbayes could turn TLS 1.2 off in it; expected TLS 1.3 alone. Call "
            f"`peerbayes.peer.protocol.connections.grpc()` before anything imports grpc, or set {VARIABLE}={NO_TLS_1_2}"
        )
    import grpc as loaded

    return loaded


# --- connections that failed the TLS handshake: gRPC only reports them on standard error, so they are read from there
# A connection without a certificate, or with another authority's, is refused before any of this package's code runs.

log = logging.getLogger("peerbayes.peer")

FAILED = re.compile(rb"^[IWE]\d{4} [\d:.]+ +\d+ \S+\.cc:\d+\] (.*)$")
ADDRESS = re.compile(rb"ipv[46]:([0-9a-f.:%\[\]]{3,64})", re.IGNORECASE)
REASONS = (
    (b"PEER_DID_NOT_RETURN_A_CERTIFICATE", "no certificate"),
    (b"CERTIFICATE_VERIFY_FAILED", "certificate of another authority, or expired"),
    (b"No match found for server name", "certificate of another peer"),
    (b"WRONG_VERSION_NUMBER", "no TLS"),
    (b"HTTP_REQUEST", "no TLS"),
    (b"NO_SHARED_CIPHER", "TLS older than 1.3"),
    (b"UNSUPPORTED_PROTOCOL", "TLS older than 1.3"),
    (b"Handshake failed", "handshake failed"),
)


def _origin(remark: bytes) -> str:
    """Return where a connection came from, if gRPC says so, in plain words."""
    match = ADDRESS.search(remark)
    return f"a connection from {match[1].decode()}" if match else "a connection that TLS did not let through"


def _write(descriptor: int, content: bytes) -> None:
    """Write to a descriptor; where that fails (a full disk), the content is lost: nobody must wait for a log."""
    with contextlib.suppress(OSError):
        os.write(descriptor, content)


def watch(refused: Callable[[str, str], None]) -> None:
    """Read this process's standard error from now on: failed handshakes go to `refused(reason, detail)`, gRPC's other
    remarks are dropped, and everything else goes where it went before."""
    original = os.dup(2)
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    os.close(writer)

    def forward() -> None:
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            unfinished = b""
            while content := pipe.read(1 << 16):
                *text_lines, unfinished = (unfinished + content).split(b"\n")
                for text_line in text_lines:
                    pass_on(text_line)
            _write(original, unfinished)

    def pass_on(text_line: bytes) -> None:
        """Handle one line, whatever goes wrong with it: if reading stopped, a full pipe would block all writers."""
        try:
            remark = FAILED.match(text_line)
            if remark is None:
                _write(original, text_line + b"\n")
                return
            for sign, reason in REASONS:
                if sign in text_line:
                    log.debug(f"a handshake failed: {remark[1].decode(errors='replace')[:500]}")
                    refused(reason, _origin(remark[1]))
                    return
        except Exception as error:
            with contextlib.suppress(OSError):  # not by the log, which ends up here
                os.write(original, f"a line of standard error was lost: {error!r:.200}\n".encode())

    thread = threading.Thread(target=forward, daemon=True, name="standard error")
    thread.start()

    def end() -> None:
        """Restore standard error, so that the last output of the process does not stay in the pipe."""
        sys.stderr.flush()
        os.dup2(original, 2)  # closes the pipe's last writer: the thread ends
        thread.join(1.0)

    atexit.register(end)


# --- limits of open files and connections: as many as the system allows, and a reserve for this process itself
# Anybody who reaches the port can open connections, before showing a certificate. They are capped below the limit of
# the process, so that its store, its roster and its calls to neighbours never run out of descriptors.

T = TypeVar("T")

MOST_OPEN = 65_536  # files that are worth asking for: a limit of millions makes some systems slow
OWN = 256  # descriptors for files, calls to neighbours and the dashboard
MOST_CONNECTIONS = 4096  # of which each takes about 20 kB before it has shown anything: 90 MB at most


def raise_limit() -> int:
    """Raise this process's limit of open files as far as allowed, and return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_OPEN if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return limit()
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # some systems allow less than they say
        return limit()
    return wanted


def limit() -> int:
    """Return how many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_OPEN if soft == resource.RLIM_INFINITY else soft


def connections(open_files: int) -> int:
    """Return how many connections others may open, given the limit of open files: all but `OWN`, and at least half."""
    return max(1, min(MOST_CONNECTIONS, max(open_files - OWN, open_files // 2)))


class Spare:
    """A spare descriptor, for the moment when no other is left."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._lent = threading.Lock()
        self._hold()

    def run(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, which opens one file at a time, also where all descriptors are in use."""
        try:
            return work()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        with self._lent:
            self.close()
            try:
                return work()
            finally:
                self._hold()

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    def _hold(self) -> None:
        try:
            self._descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # another thread was faster: try again the next time
            self._descriptor = None
