"""A member of a network: its name, its address and its certificate."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from peerbayes.peers.errors import IdentityError
from peerbayes.peers.identity import valid_name

DIGEST = re.compile(r"[0-9a-f]{64}")
HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


def valid_address(address: str) -> str:
    """Return the address if it is host:port (an IPv6 host in brackets); refuse it otherwise."""
    host, _, port = address.rpartition(":")
    inside = host[1:-1] if host.startswith("[") and host.endswith("]") else None
    if not (HOST.fullmatch(host) if inside is None else _is_ipv6(inside)) or not (
        re.fullmatch(r"[1-9][0-9]{0,4}", port) and int(port) < 2**16
    ):
        raise IdentityError(f"the address is {address!r:.80}; expected host:port, such as a.example.org:7070")
    return address


@dataclass(frozen=True)
class Member:
    """One peer of a network."""

    name: str
    address: str  # host:port where its neighbours reach it
    certificate: str  # its fingerprint

    def __post_init__(self) -> None:
        valid_name(self.name)
        valid_address(self.address)
        valid_digest(f"the certificate of {self.name}", self.certificate)


def valid_digest(subject: str, value: str) -> None:
    if not DIGEST.fullmatch(value):
        raise IdentityError(f"{subject} is {value!r:.80}; expected a sha256 digest of 64 hexadecimal digits")


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True
