"""The documents that a site passes on, in the order in which they came, so that neighbours ask for what is new.

Each document has a number, and every process a token of its own. Who says which number it has seen of which token is
told what came later, and whoever names another token (the process was started again) everything.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from peerbayes.errors import RefusedMessage
from peerbayes.peer.protocol.roster_pieces import PIECE

SIZE = 32  # bytes of a digest
TOKEN, NUMBER = 16, 8  # bytes before the digests: whose numbers they are, and the number of the last one
MOST = (PIECE - TOKEN - NUMBER) // SIZE  # digests in one reply; who has so many asks again


@dataclass(eq=False)
class Listing:
    """The digests of documents, numbered from 1 as they came."""

    token: bytes = field(default_factory=lambda: os.urandom(TOKEN))
    paths: dict[str, Path] = field(default_factory=dict)
    """By digest."""
    _numbers: list[int] = field(default_factory=list)
    _digests: list[str] = field(default_factory=list)
    _last: int = 0

    def update(self, paths: Mapping[str, Path]) -> None:
        """Have these documents and no others; new ones are numbered in the order that they are given in."""
        if not self.paths.keys() <= paths.keys():
            kept = [(n, d) for n, d in zip(self._numbers, self._digests, strict=True) if d in paths]
            self._numbers, self._digests = [n for n, _ in kept], [d for _, d in kept]
        for digest in paths:
            if digest not in self.paths:
                self._last += 1
                self._numbers.append(self._last)
                self._digests.append(digest)
        self.paths = dict(paths)

    def after(self, token: bytes, number: int) -> bytes:
        """Return the token, a number, and the digests after the given number up to it; b"": there are none."""
        start = bisect_right(self._numbers, number) if token == self.token else 0
        digests = self._digests[start : start + MOST]
        if not digests:
            return b""
        last = self._numbers[start + len(digests) - 1]
        return self.token + last.to_bytes(NUMBER, "big") + bytes.fromhex("".join(digests))


@dataclass(eq=False)
class Progress:
    """What is known of a neighbour's listing."""

    token: bytes = b""
    number: int = 0
    missing: dict[str, None] = field(default_factory=dict)
    """Digests that it listed and that are still to be asked for, in its order."""
    refused: dict[str, int] = field(default_factory=dict)
    """Digests of its invalid documents, and the roster's version then: another roster may make them valid."""

    def read(self, body: bytes, most: int) -> None:
        """Take a reply to `Listing.after`; RefusedMessage where it cannot be one, or there are more than `most`."""
        head = TOKEN + NUMBER
        if len(body) <= head or (len(body) - head) % SIZE or len(body) > head + MOST * SIZE:
            raise RefusedMessage("wrong shape", f"a listing of {len(body)} bytes")
        token, number = body[:TOKEN], int.from_bytes(body[TOKEN:head], "big")
        before = self.number if token == self.token else 0
        if not before + (len(body) - head) // SIZE <= number < 1 << 40:
            raise RefusedMessage("wrong message", f"a listing that goes from {before} to {number}")
        digests = [body[start : start + SIZE].hex() for start in range(head, len(body), SIZE)]
        if len(self.missing) + len(digests) > most:
            raise RefusedMessage("too large", f"more than {most} documents that are not here")
        self.token, self.number = token, number
        self.missing |= dict.fromkeys(digests)

    def ask_again(self, version: int) -> None:
        """Have documents asked for again that were not valid by another roster."""
        again = [digest for digest, then in self.refused.items() if then != version]
        for digest in again:
            del self.refused[digest]
        self.missing |= dict.fromkeys(again)
