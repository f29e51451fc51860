"""Frames: how calls in both directions share one connection. Nine bytes say what comes, then it comes.

    length  4 bytes   of the body, without these nine
    call    4 bytes   its number, which whoever asks gives it; 0 where there is none
    kind    1 byte    one of `Kind`

Numbers are little-endian. What is too large is refused when its length is known, before any of it is held.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import NamedTuple

HEADER = struct.Struct("<IIB")


class Kind(IntEnum):
    """What a frame is."""

    GREETING = 1  # the first of each side: what it is prepared to do
    REQUEST = 2
    REPLY = 3
    FAILED = 4  # instead of a reply: why there is none
    CANCEL = 5  # nobody waits for the reply any more
    PING = 6
    PONG = 7
    GOODBYE = 8  # why this side closes the connection


class Frame(NamedTuple):
    """One frame."""

    kind: Kind
    call: int
    body: bytes


class BadFrame(Exception):
    """A frame that no peer sends."""

    def __init__(self, reason: str, detail: str, kind: Kind | None = None, call: int = 0) -> None:
        super().__init__(detail)
        self.reason, self.kind, self.call = reason, kind, call


def header(kind: Kind, call: int, length: int) -> bytes:
    """Return what comes before a body of so many bytes."""
    return HEADER.pack(length, call, kind)


class FrameReader:
    """Makes frames of bytes, however these are divided."""

    def __init__(self, limit: Callable[[Kind, int], int]) -> None:
        self._limit = limit
        """Returns how many bytes a frame of a kind and call may have."""
        self._pieces: list[bytes] = []
        self._held = 0
        self._coming: tuple[Kind, int, int] | None = (
            None  # kind, call and length of the frame that is under way
        )

    @property
    def under_way(self) -> Kind | None:
        """The kind of the frame that has begun and not ended; None: there is none, or its first bytes lack."""
        return None if self._coming is None else self._coming[0]

    @property
    def empty(self) -> bool:
        """Whether the last frame has ended, and no other has begun."""
        return self._coming is None and not self._held

    def frames(self, content: bytes) -> Iterator[Frame]:
        """Yield the frames that end with these bytes; BadFrame where one is none, or too large."""
        self._pieces.append(content)
        self._held += len(content)
        if self._held < (HEADER.size if self._coming is None else self._coming[2]):
            return
        # Joined once and read from front to back: whoever sends many small frames costs no more than their bytes.
        held, at = content if len(self._pieces) == 1 else b"".join(self._pieces), 0
        try:
            while True:
                if self._coming is None:
                    if len(held) - at < HEADER.size:
                        return
                    header_at, at = at, at + HEADER.size
                    self._coming = self._opened(*HEADER.unpack_from(held, header_at))
                kind, call, length = self._coming
                if len(held) - at < length:
                    return
                body = held[at : at + length]
                at += length
                self._coming = None
                yield Frame(kind, call, body)
        finally:
            rest = held[at:]
            self._pieces, self._held = [rest] if rest else [], len(rest)

    def _opened(self, length: int, call: int, number: int) -> tuple[Kind, int, int]:
        try:
            kind = Kind(number)
        except ValueError:
            raise BadFrame("unreadable", f"a frame of kind {number}; expected 1 to {max(Kind)}") from None
        if length > (most := self._limit(kind, call)):
            detail = f"a {kind.name.lower()} of {length:,} bytes; expected at most {most:,}"
            raise BadFrame("too large", detail, kind, call)
        return kind, call, length
