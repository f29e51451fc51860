"""Where the dashboard listens: this machine alone, unless somebody says otherwise."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from peerbayes.web.errors import AddressError, WebError

LOOPBACK = "127.0.0.1"
USUAL_PORT, TRIED = 8765, 64  # without a port: this one, or the next that is free


@dataclass(frozen=True)
class Address:
    """A host and a port; None: the usual one or the next, 0: any that is free."""

    host: str = LOOPBACK
    port: int | None = None

    @classmethod
    def parse(cls, text: str | None) -> Address:
        """[HOST:]PORT; this machine unless a host is named."""
        if text is None:
            return cls()
        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
        if not (port.isascii() and port.isdigit()) or int(port) >= 1 << 16 or (":" in host) != ("[" in text):
            raise AddressError(f"the address is {text!r}; expected PORT or HOST:PORT, such as 127.0.0.1:8765")
        return cls(host or LOOPBACK, int(port))

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it; a name other than localhost may mean any machine."""
        return is_loopback(self.host)

    @property
    def everywhere(self) -> bool:
        """Whether it means all interfaces of this machine."""
        return self.host in ("0.0.0.0", "::")

    def bind(self) -> socket.socket:
        """A socket that listens there."""
        ports = range(USUAL_PORT, USUAL_PORT + TRIED) if self.port is None else (self.port,)
        host = LOOPBACK if self.host == "localhost" else self.host
        for port in ports:
            try:
                return listening(host, port)
            except OSError as error:
                reason = error
        raise WebError(
            f"cannot listen on {self.host}, port {ports[0]}: {reason.strerror}; choose another with --address"
        ) from reason


def listening(host: str, port: int) -> socket.socket:
    [(family, _, _, _, where), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(where)
        made.listen(128)
    except OSError:
        made.close()
        raise
    return made


def is_loopback(host: str) -> bool:
    """Whether a host is this machine and no other."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def names_loopback(header: str) -> bool:
    """Whether a Host header names this machine: a page of another name must not reach it (DNS rebinding)."""
    if header.startswith("["):
        host, closed, rest = header[1:].partition("]")
        rest = rest if closed else "not closed"
    else:
        host, colon, port = header.partition(":")
        rest = colon + port
    well_formed = not rest or (rest.startswith(":") and rest[1:].isascii() and rest[1:].isdigit())
    return well_formed and is_loopback(host.lower())
