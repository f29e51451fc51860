"""Who may look, and from where: addresses, tokens and certificates; and a dashboard's own process."""

from __future__ import annotations

import ipaddress
import re
import secrets
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from peerbayes.errors import AddressError, WebError, web_parts_needed

# --- the address that the dashboard listens on: this machine only, by default

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
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()  # :: is IPv4 as well
    return socket.create_server((host, port), family=family, backlog=128, dualstack_ipv6=both)


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


# --- access rules of the dashboard: none on this machine; a token and TLS from other machines

# Characters that need no escaping in cookies and URLs, and too many of them to guess.
TOKEN = re.compile(r"[A-Za-z0-9._~-]{16,512}")


@dataclass(frozen=True)
class Access:
    """An address, and the credentials that browsers need there."""

    address: Address
    token: str | None = None
    certificate: Path | None = None
    key: Path | None = None

    @classmethod
    def granted(
        cls,
        address: Address,
        token_file: Path | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
        plain_http: bool = False,
    ) -> Access:
        """Return the requested access; AddressError where others could eavesdrop or connect without a token."""
        if (certificate is None) != (key is None):
            raise AddressError(
                "only one of --certificate and --key was given; expected both, as PEM files, or neither"
            )
        if not address.loopback and certificate is None and not plain_http:
            raise AddressError(
                f"{address.host} can be reached from other machines, which would connect over plain HTTP; expected "
                "--certificate and --key, or --plain-http behind a proxy that terminates TLS. With `ssh -L` to "
                "127.0.0.1 none of these are needed"
            )
        for path in (certificate, key):
            if path is not None and not path.is_file():
                raise WebError(f"{path} does not exist; expected a PEM file")
        token = read_token(token_file) if token_file is not None else None
        if token is None and not address.loopback:
            token = secrets.token_urlsafe(32)
        return cls(address, token, certificate, key)

    @property
    def remote(self) -> bool:
        """Whether other machines may connect: the address is not loopback, or a token is required."""
        return self.token is not None or not self.address.loopback

    @property
    def secure(self) -> bool:
        return self.certificate is not None

    def url(self, port: int) -> str:
        """Return the URL to open in a browser."""
        host = self.address.host
        host = socket.gethostname() if host in ("0.0.0.0", "::") else host  # these are all interfaces
        shown = f"[{host}]" if ":" in host else host
        query = "" if self.token is None else f"?token={self.token}"
        return f"{'https' if self.secure else 'http'}://{shown}:{port}/{query}"


def read_token(path: Path) -> str:
    """Return the token in a file."""
    token = path.read_text(encoding="utf-8", errors="replace").strip()
    if not TOKEN.fullmatch(token):
        raise AddressError(
            f"{path} holds no token: it has {len(token)} characters; expected 16 or more letters, digits and '-._~' "
            "on one line, such as the output of `openssl rand -hex 32`"
        )
    return token


# --- a dashboard next to the process that it shows: started and ended together with it

START_TIMEOUT = 120.0  # seconds, enough on a busy machine
STOP_TIMEOUT = 10.0  # seconds


@dataclass(frozen=True)
class Launched:
    """A dashboard's process. It ends with this process, even when this one is killed: its standard input then ends."""

    url: str
    process: subprocess.Popen[bytes]


@contextmanager
def launch(folder: Path, address: str | None = None) -> Iterator[Launched]:
    """Start a dashboard of a folder, on this machine only, wait until it responds, and end it afterwards."""
    if not Address.parse(address).loopback:
        raise AddressError(
            f"the address is {address}; expected one of this machine. For access from other machines, run "
            f"`peerbayes watch {folder} --address {address}`, which requires a token"
        )
    with web_parts_needed():
        for package in ("starlette", "uvicorn", "plotly"):
            if find_spec(package) is None:
                raise ModuleNotFoundError(name=package)
    command = [sys.executable, "-m", "peerbayes", "watch", str(folder), "--attached"]
    process = subprocess.Popen(
        command + ([] if address is None else ["--address", address]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C goes to the parent process only
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        readable, _, _ = select.select([process.stdout], [], [], START_TIMEOUT)
        url = process.stdout.readline().decode().strip() if readable else ""
        if not url:
            raise WebError(
                f"the dashboard of {folder} did not start; run `peerbayes watch {folder}` to see why"
            )
        yield Launched(url, process)
    finally:
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
