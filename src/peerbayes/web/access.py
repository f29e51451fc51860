"""What it takes to be let in: nothing on this machine, a token and TLS from any other."""

from __future__ import annotations

import re
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from peerbayes.web.address import Address
from peerbayes.web.errors import AddressError, WebError

# What a cookie and an address can hold as it is, and too much to be guessed.
TOKEN = re.compile(r"[A-Za-z0-9._~-]{16,512}")


@dataclass(frozen=True)
class Access:
    """An address, and what browsers must bring there."""

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
        """The access asked for; AddressError where others could read along, or come in unasked."""
        if (certificate is None) != (key is None):
            raise AddressError(
                "only one of --certificate and --key was given; expected both, in PEM files, or none"
            )
        if not address.loopback and certificate is None and not plain_http:
            raise AddressError(
                f"{address.host} can be reached from other machines, and they would speak plain HTTP with it; expected "
                "--certificate and --key, or --plain-http where something in front speaks TLS. `ssh -L` to 127.0.0.1 "
                "needs none of them"
            )
        for path in (certificate, key):
            if path is not None and not path.is_file():
                raise WebError(f"{path} does not exist; expected a PEM file")
        token = read_token(token_file) if token_file is not None else None
        if token is None and not address.loopback:
            token = secrets.token_urlsafe(32)
        return cls(address, token, certificate, key)

    @property
    def beyond(self) -> bool:
        """Whether others than this machine may look: by its address, or since whoever looks is asked for a token."""
        return self.token is not None or not self.address.loopback

    @property
    def secure(self) -> bool:
        return self.certificate is not None

    def url(self, port: int) -> str:
        """What to open in a browser."""
        host = socket.gethostname() if self.address.everywhere else self.address.host
        shown = f"[{host}]" if ":" in host else host
        asked = "" if self.token is None else f"?token={self.token}"
        return f"{'https' if self.secure else 'http'}://{shown}:{port}/{asked}"


def read_token(path: Path) -> str:
    """The token in a file."""
    token = path.read_text(encoding="utf-8", errors="replace").strip()
    if not TOKEN.fullmatch(token):
        raise AddressError(
            f"{path} holds no token: it has {len(token)} characters; expected 16 or more letters, digits and '-._~' "
            "in one line, such as `openssl rand -hex 32` gives"
        )
    return token
