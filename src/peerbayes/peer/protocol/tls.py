"""TLS 1.3 between members: both ends show a certificate of the network, and nothing else gets through."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from peerbayes.errors import IdentityError
from peerbayes.peer.identity import keys

ALPN = "peerbayes"  # what both ends agree to speak inside; gRPC, which peers spoke before, is "h2"


@dataclass(frozen=True)
class Shown:
    """A certificate whose key the other end has proved to hold: TLS 1.3 signs each handshake with it."""

    name: str
    certificate: bytes
    """In PEM."""
    fingerprint: str
    refuse: Callable[[bytes, bytes], None]
    """Refuses a signature of content that was not made with that key."""


@lru_cache(maxsize=1024)
def shown(certificate: bytes) -> Shown:
    """Return what a certificate in DER says."""
    pem = ssl.DER_cert_to_PEM_cert(certificate).encode()
    return Shown(keys.name_of(pem), pem, keys.fingerprint(pem), keys.verifying(pem))


def shown_over(channel: ssl.SSLObject) -> Shown:
    """Return what the other end of a handshake has shown; IdentityError where that is not a member's."""
    content = channel.getpeercert(binary_form=True)
    if not content:  # the contexts below ask for one: no handshake ends without
        raise IdentityError("the other side showed no certificate")
    return shown(content)


def context(authority: bytes, key: bytes, chain: bytes, server: bool) -> ssl.SSLContext:
    """Return the settings of one end: TLS 1.3 alone, its own certificate, and the other's from the authority.

    chain  this peer's certificate in PEM, and behind it that of the deputy that issued it, if one did
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    # A member is known by name and key, wherever it is: `Links` compares both with the roster, on both sides.
    made.check_hostname = False
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_verify_locations(cadata=authority.decode())
    made.set_alpn_protocols([ALPN])
    if server:
        made.num_tickets = 0  # each connection shows its certificates again
    _load(made, key, chain)
    return made


def _load(made: ssl.SSLContext, key: bytes, chain: bytes) -> None:
    """Load a key and its certificates, which `ssl` takes from files only: from one that nobody else can open."""
    content = chain + (b"" if chain.endswith(b"\n") else b"\n") + key
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("peerbayes", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            made.load_cert_chain(f"/proc/self/fd/{descriptor}")
        return
    with tempfile.TemporaryDirectory() as folder:  # readable by this user alone
        path = Path(folder) / "identity.pem"
        path.write_bytes(content)
        made.load_cert_chain(path)
