"""Connections that never got through TLS: gRPC only mentions them on standard error, so that is where they are read.

Whoever connects without a certificate, or with another authority's, is turned away before any of this code is called.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import sys
import threading
from collections.abc import Callable

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


def _origin(line: bytes) -> str:
    """Return where a connection came from, if gRPC says so, in plain words."""
    at = ADDRESS.search(line)
    return f"a connection from {at[1].decode()}" if at else "a connection that TLS did not let through"


def _written(to: int, content: bytes) -> None:
    """Write what is for people; where that fails (a full disk), it is lost: nobody must wait for a log."""
    with contextlib.suppress(OSError):
        os.write(to, content)


def watch(refused: Callable[[str, str], None]) -> None:
    """From now on, read what this process writes to standard error: handshakes that failed go to `refused` (reason,
    detail), gRPC's other remarks nowhere, and everything else where it went before."""
    original = os.dup(2)
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    os.close(writer)

    def forward() -> None:
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            rest = b""
            while content := pipe.read(1 << 16):
                *lines, rest = (rest + content).split(b"\n")
                for line in lines:
                    passed_on(line)
            _written(original, rest)

    def passed_on(line: bytes) -> None:
        """Whatever goes wrong with a line, the next ones are read: a full pipe would stop all who write to it."""
        try:
            remark = FAILED.match(line)
            if remark is None:
                _written(original, line + b"\n")
                return
            for sign, reason in REASONS:
                if sign in line:
                    log.debug(f"a handshake failed: {remark[1].decode(errors='replace')[:500]}")
                    refused(reason, _origin(remark[1]))
                    return
        except Exception as error:
            with contextlib.suppress(OSError):  # not by the log, which ends up here
                os.write(original, f"a line of standard error was lost: {error!r:.200}\n".encode())

    thread = threading.Thread(target=forward, daemon=True, name="standard error")
    thread.start()

    def end() -> None:
        """The last words of a process must not stay in the pipe."""
        sys.stderr.flush()
        os.dup2(original, 2)  # nobody writes to the pipe any more: the thread comes to its end
        thread.join(1.0)

    atexit.register(end)
