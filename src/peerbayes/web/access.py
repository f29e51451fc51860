"""Access rules of the dashboard: none on this machine; a token and TLS from other machines."""

from __future__ import annotations

import re
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from peerbayes.web.address import Address
from peerbayes.web.errors import AddressError, WebError

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
        host = socket.gethostname() if self.address.everywhere else self.address.host
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
