"""Calls: proofs of who is at the other end of a channel, and what a failed call means."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from dataclasses import dataclass
from typing import Any, NamedTuple

from peerbayes.data.files import printable
from peerbayes.errors import PeerError, RefusedMessage
from peerbayes.peer.identity.roster import DIGEST
from peerbayes.peer.protocol import connections
from peerbayes.peer.protocol.wire import SPOKEN, Versions, packed, refuse_apart

# --- signatures on a channel: a peer proves that it holds its key, and signs every reply; valid for one caller only
# gRPC shows a client neither the TLS channel nor the server's certificate, so a signature is bound to what both
# ends do know: names, certificates (the server sees the caller's in the handshake) and bytes that the caller chose.
# A man in the middle has another certificate than the caller; signatures that it relays are not valid there.

PROOF_CONTEXT = b"peerbayes proof\n"  # signed along, so that no other signature of a peer passes for a proof
REPLY = b"peerbayes reply\n"  # the same for a reply
NONCE = 32  # random bytes that are signed along
OF_VERSION_2 = 32  # bytes of a request for a proof before version 3
NONCE_KEY, SIGNATURE_KEY = "nonce-bin", "signature-bin"  # metadata of a request and of its reply
LARGE = 1 << 20  # bytes from which on a digest is not taken on the event loop


@dataclass(frozen=True)
class Ends:
    """Caller and callee, by names and certificates."""

    network: str
    caller: str
    caller_certificate: str  # its fingerprint, as the server sees it
    callee: str
    callee_certificate: str

    def proof(self, run: str, nonce: bytes) -> bytes:
        """Return the content that the callee signs to prove that it holds its key."""
        return PROOF_CONTEXT + packed((*self._fields, run.encode(), nonce))

    def reply(self, nonce: bytes, request: bytes, reply: bytes) -> bytes:
        """Return the content that the callee signs of its reply; request and reply are digests, and contain the run."""
        return REPLY + packed((*self._fields, nonce, request, reply))

    @property
    def _fields(self) -> tuple[bytes, ...]:
        names = self.network, self.caller, self.caller_certificate, self.callee, self.callee_certificate
        return tuple(name.encode() for name in names)


def proof_request(run: str, nonce: bytes) -> bytes:
    """Return the request by which a caller has its neighbour prove its key."""
    return nonce + run.encode()


def proof_asked(content: bytes) -> tuple[str, bytes]:
    """Return the run and the nonce of a request for a proof; refuse anything else, or it would be signed."""
    if len(content) == OF_VERSION_2:
        refuse_apart("the caller", Versions(2, 2), "the peer that it asks", SPOKEN)
    nonce, run = content[:NONCE], content[NONCE:].decode("ascii", "replace")
    if not DIGEST.fullmatch(run):
        raise RefusedMessage(
            "unreadable", f"{len(content)} bytes to sign; expected {NONCE} and the digest of a run"
        )
    return run, nonce


async def digest(content: bytes) -> bytes:
    """Return sha256 of a message; of a large one in a thread."""
    if len(content) < LARGE:
        return hashlib.sha256(content).digest()
    return await asyncio.to_thread(lambda: hashlib.sha256(content).digest())


# --- what gRPC says of a failed call, in words for people

log = logging.getLogger("peerbayes.peer")


class Unreachable(PeerError):
    """A neighbour that cannot be reached now."""


class Barred(Unreachable):
    """A neighbour that does not talk to this peer."""


class Caller(NamedTuple):
    """The identity of a caller, from its certificate."""

    name: str
    certificate: str
    """Its fingerprint."""


# What gRPC says of a failed call, and what it means.
FAILURES = (
    ("Hostname Verification", "has another peer's certificate: is the address right?"),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "has a certificate of another authority, or one that has expired: are the clocks right?",
    ),
    ("SSLV3_ALERT_HANDSHAKE_FAILURE", "does not speak TLS 1.3: update it, or check what is in between"),
    ("PROTOCOL_VERSION", "does not speak TLS 1.3: update it, or check what is in between"),
    ("Connection refused", "refuses connections: it is not running, or it listens on another port"),
    ("No route", "cannot be reached: no route to its host"),
    ("DNS resolution failed", "has an address that cannot be resolved"),
    ("Domain name not found", "has an address that cannot be resolved"),
    ("Socket closed", "closed the connection: it may not trust this certificate, or is going down"),
    ("Connection reset", "closed the connection: it may not trust this certificate, or is going down"),
    ("Broken pipe", "closed the connection: it may not trust this certificate, or is going down"),
    ("GOAWAY", "closed the connection: it is going down"),
    ("Network is unreachable", "cannot be reached: this machine has no route to its network"),
    ("keepalive", "no longer answers: its host, or the network in between, may be down"),
    ("imed out", "did not answer in time"),
    ("imeout", "did not answer in time"),
    ("WRONG_VERSION_NUMBER", "is not a peer: something else answers at that address"),
    ("http2", "is not a peer: something else answers at that address"),
)

# The same by gRPC's status code, for texts that are in no line above.
OF_CODES = {
    "UNAUTHENTICATED": "does not accept this peer's certificate: one of the two has an older roster",
    "RESOURCE_EXHAUSTED": "has too many calls waiting; it will be asked again",
    "INTERNAL": "could not answer; its log says why",
    "UNIMPLEMENTED": "is not a peer: something else answers at that address",
}


def explained(neighbour: str, address: str, error: Any) -> PeerError:
    """Return the error that a failed call means, with a text for people."""
    grpc = connections.grpc()
    details = printable((str(error.details()).splitlines() or [""])[0])
    log.debug(f"asking {neighbour} at {address} failed: {error.code().name}, {details}")
    if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
        return RefusedMessage("too large", "a message larger than what was agreed on (limits.message_bytes)")
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        return Unreachable(f"{neighbour} at {address} did not answer in time")
    if error.code() == grpc.StatusCode.PERMISSION_DENIED:
        return Barred(f"{neighbour} at {address} refuses this peer: {details:.200}")
    if error.code() == grpc.StatusCode.INVALID_ARGUMENT:
        return RefusedMessage(
            "other version", f"{neighbour} does not accept this peer's requests: {details:.200}"
        )
    for mark, meaning in FAILURES:
        if mark in details:
            return Unreachable(f"{neighbour} at {address} {meaning}")
    return Unreachable(f"{neighbour} at {address} {OF_CODES.get(error.code().name, 'cannot be reached now')}")
