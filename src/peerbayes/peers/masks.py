"""Pairwise masks: all words of a group reveal their sum, fewer reveal nothing.

    key_uw  = HKDF-SHA256(X25519(sk_u, pk_w), info)     info: network, run, round t, receiver v, group A, pair {u, w}
    m_u     = fix(a_vu φ_u) + Σ_{w∈A, w>u} PRG(key_uw) − Σ_{w∈A, w<u} PRG(key_uw)   mod 2⁶⁴
    Σ_u m_u = Σ_u fix(a_vu φ_u)                         every PRG(key_uw) occurs once with + and once with −

PRG is ChaCha20's keystream as little-endian uint64. A mask may be used once: one message per key, round and receiver.
The pair's names are part of `info`: otherwise a member that passed another's public key off as its own would make the
masks between a third member and these two cancel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from peerbayes.peers.errors import IdentityError
from peerbayes.secure_sums import fixed, unfixed

PURPOSE = b"peerbayes/mask/1"
KEY = 32  # bytes of a key, private or public
NONCE = bytes(16)  # each key makes one keystream, from its beginning


def new_key() -> bytes:
    """Return a new private key."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


@dataclass(frozen=True)
class Group:
    """The members whose messages one receiver adds up: names and public keys."""

    receiver: str
    keys: Mapping[str, bytes]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.keys))

    @cached_property
    def digest(self) -> str:
        """sha256 of names and keys: it differs between peers that see different groups."""
        fields = [field for name in self.names for field in (name.encode(), self.keys[name])]
        return hashlib.sha256(packed(fields)).hexdigest()


class Masker:
    """One peer's masks in one run. Shared secrets are computed once for each other peer."""

    def __init__(self, name: str, private: bytes, network: str, run: str) -> None:
        self.name = name
        self._private = X25519PrivateKey.from_private_bytes(private)
        self._run = network.encode(), run.encode()
        self._secrets: dict[bytes, bytes] = {}
        self._zeros = b""

    def words(self, values: np.ndarray, round_index: int, group: Group) -> np.ndarray:
        """Return m_u of the numbers a_vu φ_u: uint64 of the same shape. ValueError where they are too large."""
        words = fixed(values, len(group.names)).view(np.uint64).reshape(-1)
        for member in group.names:
            if member == self.name:
                continue
            stream = self._stream(self._key(member, round_index, group), words.size)
            if member > self.name:
                words += stream
            else:
                words -= stream
        return words.reshape(values.shape)

    def _key(self, member: str, round_index: int, group: Group) -> bytes:
        pair = sorted((self.name.encode(), member.encode()))
        context = (round_index.to_bytes(8, "big"), group.receiver.encode(), bytes.fromhex(group.digest))
        info = packed((PURPOSE, *self._run, *context, *pair))
        return HKDF(hashes.SHA256(), KEY, None, info).derive(self.secret(member, group.keys[member]))

    def secret(self, member: str, public: bytes) -> bytes:
        """Return the secret shared with another member: X25519 of their keys."""
        if public not in self._secrets:
            try:
                self._secrets[public] = self._private.exchange(X25519PublicKey.from_public_bytes(public))
            except ValueError as problem:  # a point of small order, or not 32 bytes
                raise IdentityError(
                    f"the mask key of {member} is not valid: {problem}; its owner must start again"
                ) from problem
        return self._secrets[public]

    def _stream(self, key: bytes, words: int) -> np.ndarray:
        if len(self._zeros) != 8 * words:
            self._zeros = bytes(8 * words)
        stream = Cipher(ChaCha20(key, NONCE), mode=None).encryptor().update(self._zeros)
        return np.frombuffer(stream, dtype="<u8")


def summed(words: Iterable[np.ndarray]) -> np.ndarray:
    """Return Σ_u a_vu φ_u as float64 from all words of a group."""
    first, *remaining = words
    total = first.astype(np.uint64)
    for addend in remaining:
        total += addend
    return unfixed(total)


def packed(fields: Iterable[bytes]) -> bytes:
    """Concatenate fields, each preceded by its length: no two lists give the same bytes."""
    return b"".join(len(field).to_bytes(4, "big") + field for field in fields)
