"""What a peer signs on a channel: that it holds its key, and every reply. Good for that caller, and nowhere else.

gRPC tells a client nothing of the TLS channel and of the server's certificate, so a signature is bound to what both
ends do know: names, certificates (the server sees the caller's in the handshake) and bytes that the caller chose.
Whoever stands between two peers has another certificate than the caller; what it hands on does not fit there.
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
NONCE_KEY, SIGNATURE_KEY = "nonce-bin", "signature-bin"  # where they travel beside a request and its reply
LARGE = 1 << 20  # bytes from which on a digest is not taken on the event loop


def new_nonce() -> bytes:
    return os.urandom(NONCE)


@dataclass(frozen=True)
class Ends:
    """Who asks whom, by names and certificates."""

    network: str
    caller: str
    caller_certificate: str  # its fingerprint, as the server sees it
    callee: str
    callee_certificate: str

    def proof(self, run: str, nonce: bytes) -> bytes:
        """Return what the callee signs to prove that it holds its key."""
        return PROOF + packed((*self._parts, run.encode(), nonce))

    def reply(self, nonce: bytes, request: bytes, reply: bytes) -> bytes:
        """Return what the callee signs of its reply; the run is in both messages, given by their digests."""
        return REPLY + packed((*self._parts, nonce, request, reply))

    @property
    def _parts(self) -> tuple[bytes, ...]:
        names = self.network, self.caller, self.caller_certificate, self.callee, self.callee_certificate
        return tuple(name.encode() for name in names)


def proof_request(run: str, nonce: bytes) -> bytes:
    """Return what a caller sends to have its neighbour prove its key."""
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
    """Return sha256 of a message; a large one's in a thread."""
    if len(content) < LARGE:
        return hashlib.sha256(content).digest()
    return await asyncio.to_thread(lambda: hashlib.sha256(content).digest())
