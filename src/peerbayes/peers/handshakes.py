"""Connections that failed the TLS handshake: gRPC only reports them on standard error, so they are read from there.

A connection without a certificate, or with another authority's, is refused before any of this package's code runs.
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
