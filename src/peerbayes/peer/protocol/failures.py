"""What it means that a connection failed, in words for people."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl

from peerbayes.errors import PeerError


class Unreachable(PeerError):
    """A neighbour that cannot be reached now."""


AWAY = "closed the connection: it may not trust this certificate, or is going down"

# What OpenSSL says of a handshake or of a connection, and what it means to whoever dialled.
OF_TLS = (
    ("CERTIFICATE_VERIFY_FAILED",
     "has a certificate of another authority, or one that has expired: are the clocks right?"),
    ("UNSUPPORTED_PROTOCOL", "does not speak TLS 1.3: update it, or check what is in between"),
    ("PROTOCOL_VERSION", "does not speak TLS 1.3: update it, or check what is in between"),
    ("WRONG_VERSION_NUMBER", "is not a peer: something else answers at that address"),
    ("RECORD_LAYER_FAILURE", "is not a peer: something else answers at that address"),
    ("HTTP_REQUEST", "is not a peer: something else answers at that address"),
)  # fmt: skip
OF_SYSTEM = {
    errno.ECONNREFUSED: "refuses connections: it is not running, or it listens on another port",
    errno.EHOSTUNREACH: "cannot be reached: no route to its host",
    errno.ENETUNREACH: "cannot be reached: this machine has no route to its network",
    errno.ETIMEDOUT: "did not answer in time",
}

# The same of a handshake that somebody else began: the reason under which it is counted.
REASONS = (
    ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "no certificate"),
    ("CERTIFICATE_VERIFY_FAILED", "certificate of another authority, or expired"),
    ("WRONG_VERSION_NUMBER", "no TLS"),
    ("HTTP_REQUEST", "no TLS"),
    ("HTTPS_PROXY_REQUEST", "no TLS"),
    ("NO_SHARED_CIPHER", "TLS older than 1.3"),
    ("UNSUPPORTED_PROTOCOL", "TLS older than 1.3"),
    ("NO_PROTOCOLS_AVAILABLE", "TLS older than 1.3"),
    ("VERSION_TOO_LOW", "TLS older than 1.3"),
)


def meaning(error: BaseException) -> str:
    """Return what the error of a connection means, as a phrase that follows the neighbour's name."""
    if isinstance(error, ssl.SSLError):
        said = _text(error)
        return next((phrase for mark, phrase in OF_TLS if mark in said), AWAY)
    if isinstance(error, socket.gaierror):
        return "has an address that cannot be resolved"
    if isinstance(error, TimeoutError | asyncio.TimeoutError | ConnectionAbortedError):
        return "did not answer in time"
    if isinstance(error, OSError):
        return OF_SYSTEM.get(error.errno or 0, AWAY)
    return AWAY


def refusal(error: BaseException) -> str:
    """Return the reason for which a handshake that somebody else began failed; "": it was only given up."""
    if not isinstance(error, ssl.SSLError):
        return ""
    said = _text(error)
    return next((reason for mark, reason in REASONS if mark in said), "handshake failed")


def _text(error: ssl.SSLError) -> str:
    """Return all that an error of TLS says; only those that OpenSSL raised have a reason."""
    return f"{getattr(error, 'reason', None) or ''} {error}"
