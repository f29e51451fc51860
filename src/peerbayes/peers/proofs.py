"""Signatures on a channel: a peer proves that it holds its key, and signs every reply; valid for one caller only.

gRPC shows a client neither the TLS channel nor the server's certificate, so a signature is bound to what both
ends do know: names, certificates (the server sees the caller's in the handshake) and bytes that the caller chose.
A man in the middle has another certificate than the caller; signatures that it relays are not valid there.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from dataclasses import dataclass

from peerbayes.peers.errors import RefusedMessage
from peerbayes.peers.masks import packed
from peerbayes.peers.member import DIGEST
from peerbayes.peers.wire import VERSION

PROOF = b"peerbayes proof\n"  # signed along, so that no other signature of a peer passes for a proof
REPLY = b"peerbayes reply\n"  # the same for a reply
NONCE = 32  # random bytes that are signed along
OF_VERSION_2 = 32  # bytes of a request for a proof before version 3
NONCE_KEY, SIGNATURE_KEY = "nonce-bin", "signature-bin"  # metadata of a request and of its reply
LARGE = 1 << 20  # bytes from which on a digest is not taken on the event loop


def new_nonce() -> bytes:
    return os.urandom(NONCE)


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
        return PROOF + packed((*self._fields, run.encode(), nonce))

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
        raise RefusedMessage(
            "other version", f"protocol 2; this peerbayes speaks {VERSION}. Update the older one"
        )
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
