"""How a neighbour is reached: at its address, through a proxy, or by way of a relay that cannot read what passes.

host:port            it listens there
relay://host:port    it waits at that relay, and is asked for by the digest of its key
outbound             it cannot be reached: it opens the connections to all of its neighbours
"""

from __future__ import annotations

import asyncio
import base64
import socket
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from peerbayes.data.files import printable
from peerbayes.peer.identity.roster import OUTBOUND, RELAY
from peerbayes.peer.protocol.failures import Unreachable, meaning

LINE = 8 << 10  # bytes of an answer of a proxy or a relay, at most
ONE_OF_MANY = 2.5  # seconds for one address of a host that has others
WORD = "PEERBAYES/1"  # what every line to a relay begins with


class Route(NamedTuple):
    """The way to a member."""

    host: str
    port: int
    relayed: bool


def route(address: str) -> Route | None:
    """Return the way to an address of a roster; None: there is none, it calls itself."""
    if address == OUTBOUND:
        return None
    place = address.removeprefix(RELAY)
    host, _, port = place.rpartition(":")
    return Route(host.strip("[]"), int(port), place != address)


async def dialled(way: Route, key: str, proxy: str | None) -> socket.socket:
    """Return a connection to a member on a way, on which TLS is to begin.

    key    the digest of the member's public key, by which a relay knows it
    proxy  an HTTP proxy, http://[user:password@]host:port; None: none
    """
    if not way.relayed:
        return await through(way.host, way.port, proxy)
    at = f"the relay {way.host}:{way.port}"
    try:
        line = await through(way.host, way.port, proxy)
    except OSError as error:
        raise Unreachable(f"is not reached: {at} {meaning(error)}") from error
    try:
        answer = await asked(line, f"{WORD} CALL {key}")
    except BaseException:
        line.close()
        raise
    if answer != f"{WORD} OK":
        line.close()
        raise Unreachable(
            f"is not connected to {at}"
            if answer == f"{WORD} NOBODY"
            else f"is not reached: {at} says {answer:.100}"
        )
    return line


async def through(host: str, port: int, proxy: str | None) -> socket.socket:
    """Return a connection to a place, through a proxy where there is one."""
    if proxy is None:
        return await _connected(host, port)
    parts = urlsplit(proxy)
    assert parts.hostname is not None and parts.port is not None  # the settings were checked
    try:
        line = await _connected(parts.hostname, parts.port)
    except OSError as error:
        raise Unreachable(
            f"is not reached: the proxy {parts.hostname}:{parts.port} cannot be: {error}"
        ) from error
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    head = f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n"
    if parts.username is not None:
        secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
        head += f"Proxy-Authorization: Basic {base64.b64encode(secret).decode()}\r\n"
    try:
        await asyncio.get_running_loop().sock_sendall(line, f"{head}\r\n".encode())
        answer = (await _until(line, b"\r\n\r\n")).split(b"\r\n")[0].decode(errors="replace")
        version, _, rest = answer.partition(" ")
        if not version.startswith("HTTP/1.") or not rest.startswith("2"):
            raise Unreachable(
                f"is not reached: the proxy {parts.hostname}:{parts.port} answers {printable(answer):.100}"
            )
    except BaseException:
        line.close()
        raise
    return line


async def asked(line: socket.socket, text: str) -> str:
    """Return the line with which a relay answers a line."""
    await asyncio.get_running_loop().sock_sendall(line, f"{text}\n".encode())
    return await heard(line)


async def heard(line: socket.socket) -> str:
    """Return the next line that a relay says."""
    return printable((await _until(line, b"\n")).decode(errors="replace").strip())


async def _until(line: socket.socket, end: bytes) -> bytes:
    """Return what comes up to an end, and not a byte more: the next ones belong to TLS."""
    loop, content = asyncio.get_running_loop(), b""
    while not content.endswith(end):
        byte = await loop.sock_recv(line, 1)
        if not byte:
            raise ConnectionResetError("it closed the connection")
        content += byte
        if len(content) > LINE:
            raise ConnectionResetError(f"more than {LINE} bytes came without an end")
    return content


async def _connected(host: str, port: int) -> socket.socket:
    """Return a connection to a host, at the first of its addresses that takes one."""
    loop, last = asyncio.get_running_loop(), OSError("it has no address")
    places = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for number, (family, kind, protocol, _, place) in enumerate(places, 1):
        line = socket.socket(family, kind, protocol)
        line.setblocking(False)
        try:
            # An address that swallows what is sent to it, such as IPv6 behind some firewalls, leaves time for the next.
            async with asyncio.timeout(ONE_OF_MANY if number < len(places) else None):
                await loop.sock_connect(line, place)
        except OSError as error:
            line.close()
            last = error
        except BaseException:
            line.close()
            raise
        else:
            return line
    raise last
