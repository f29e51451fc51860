"""The address that the dashboard listens on: this machine only, by default."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from peerbayes.web.errors import AddressError, WebError

LOOPBACK = "127.0.0.1"
USUAL_PORT, TRIED = 8765, 64  # the default port, and how many ports from it on are tried


@dataclass(frozen=True)
class Address:
    """A host and a port; None: the default port or the next free one, 0: any free port."""

    host: str = LOOPBACK
    port: int | None = None

    @classmethod
    def parse(cls, text: str | None) -> Address:
        """Parse [HOST:]PORT; the default host is this machine."""
        if text is None:
            return cls()
        host, _, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
        if not (port.isascii() and port.isdigit()) or int(port) >= 1 << 16 or (":" in host) != ("[" in text):
            raise AddressError(f"the address is {text!r}; expected PORT or HOST:PORT, such as 127.0.0.1:8765")
        return cls(host or LOOPBACK, int(port))

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it; any name but localhost may belong to another machine."""
        return is_loopback(self.host)

    @property
    def everywhere(self) -> bool:
        """Whether it is the wildcard address: all interfaces of this machine."""
        return self.host in ("0.0.0.0", "::")

    def bind(self) -> socket.socket:
        """Return a socket that listens on this address."""
        ports = range(USUAL_PORT, USUAL_PORT + TRIED) if self.port is None else (self.port,)
        host = LOOPBACK if self.host == "localhost" else self.host
        for port in ports:
            try:
                return listen(host, port)
            except OSError as error:
                reason = error
        raise WebError(
            f"cannot listen on {self.host}, port {ports[0]}: {reason.strerror}; choose another with --address"
        ) from reason


def listen(host: str, port: int) -> socket.socket:
    [(family, _, _, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def names_loopback(header: str) -> bool:
    """Return whether a Host header names this machine; others are refused, against DNS rebinding."""
    if header.startswith("["):
        host, closed, suffix = header[1:].partition("]")
        suffix = suffix if closed else "not closed"
    else:
        host, colon, port = header.partition(":")
        suffix = colon + port
    well_formed = not suffix or (suffix.startswith(":") and suffix[1:].isascii() and suffix[1:].isdigit())
    return well_formed and is_loopback(host.lower())
