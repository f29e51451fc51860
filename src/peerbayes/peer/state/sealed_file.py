"""Files under a passphrase: scrypt makes the key, and AES-256-GCM seals the content piece by piece.

    "PEERBAYES SEALED 1\\n" · salt (16) · log2 n, r, p of scrypt (1 each) · nonce (7) · pieces

Each piece has 64 KiB and a tag of 16 bytes, the last one less or nothing. Its nonce is the file's, its number, and
whether it is the last: a piece that is changed, moved, repeated or cut off does not open.
"""

from __future__ import annotations

import io
import os
import struct
from typing import BinaryIO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from peerbayes.errors import PeerError

__all__ = ["MAGIC", "Opened", "Sealed"]

MAGIC = b"PEERBAYES SEALED 1\n"
HEAD = struct.Struct("<16sBBB7s")
SCRYPT = 17, 8, 1  # log2 n, r, p: 128 MiB and a third of a second for every guess
LARGEST = 20, 32, 16  # of them that a file may ask for: more would only keep this machine busy
PIECE, TAG = 64 << 10, 16


def _cipher(passphrase: str, head: bytes) -> AESGCM:
    salt, log_n, r, p, _ = HEAD.unpack(head)
    if not (1 <= log_n <= LARGEST[0] and 1 <= r <= LARGEST[1] and 1 <= p <= LARGEST[2]):
        raise PeerError(
            "the sealed file asks for more work than any of ours; it is damaged, or somebody made it up"
        )
    return AESGCM(Scrypt(salt, 32, 1 << log_n, r, p).derive(passphrase.encode()))


class Sealed(io.RawIOBase):
    """Writes a sealed file; nothing can be read of it without the passphrase."""

    def __init__(self, file: BinaryIO, passphrase: str) -> None:
        if not passphrase:
            raise PeerError("the passphrase is empty; expected some words, or leave it out")
        self._file, self._number, self._buffer = file, 0, bytearray()
        head = HEAD.pack(os.urandom(16), *SCRYPT, os.urandom(7))
        self._nonce, self._head, self._cipher = head[-7:], MAGIC + head, _cipher(passphrase, head)
        file.write(self._head)

    def writable(self) -> bool:
        return True

    def write(self, content: bytes) -> int:  # type: ignore[override]
        self._buffer += content
        while len(self._buffer) > PIECE:
            self._seal(self._buffer[:PIECE], last=False)
            del self._buffer[:PIECE]
        return len(content)

    def close(self) -> None:
        """Write the last piece; the file underneath stays open."""
        if not self.closed:
            self._seal(self._buffer, last=True)
        super().close()

    def _seal(self, content: bytes | bytearray, last: bool) -> None:
        nonce = self._nonce + struct.pack(">IB", self._number, last)
        self._file.write(self._cipher.encrypt(nonce, bytes(content), self._head))
        self._number += 1


class Opened(io.RawIOBase):
    """Reads a sealed file; PeerError where the passphrase is wrong or a byte was changed."""

    def __init__(self, file: BinaryIO, passphrase: str) -> None:
        head = file.read(len(MAGIC) + HEAD.size)
        if not head.startswith(MAGIC) or len(head) < len(MAGIC) + HEAD.size:
            raise PeerError("not a sealed file, or its beginning is missing; get it again from its origin")
        self._file, self._number, self._head = file, 0, head
        self._nonce, self._cipher = head[-7:], _cipher(passphrase, head[len(MAGIC) :])
        self._plain, self._next, self._ended = b"", file.read(PIECE + TAG), False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        while not self._plain and not self._ended:
            self._plain = self._open()
        count = min(len(buffer), len(self._plain))
        buffer[:count] = self._plain[:count]
        self._plain = self._plain[count:]
        return count

    def _open(self) -> bytes:
        piece, self._next = self._next, self._file.read(PIECE + TAG)
        self._ended = not self._next
        nonce = self._nonce + struct.pack(">IB", self._number, self._ended)
        self._number += 1
        try:
            return self._cipher.decrypt(nonce, piece, self._head)
        except InvalidTag:
            raise PeerError(
                "the sealed file does not open: the passphrase is another one, or the file was changed or cut off"
            ) from None
