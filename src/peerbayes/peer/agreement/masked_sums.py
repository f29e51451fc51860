"""Sums over sites of which nobody sees a single site's part, also not its only neighbour on the tree.

    w_s = words_s + Σ_{t after s} PRG(key_st) − Σ_{t before s} PRG(key_st)   mod 2⁶⁴          Σ_s w_s = Σ_s words_s

`key_st` follows from the X25519 keys that both sites made for this sum and vouched for. Every site masks its words
against up to 64 others, those nearest to it in a circle of all that take part: a part of the sum is hidden as long as
one of them is honest and not in it. If anything is missing there is no sum at all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from peerbayes.errors import RefusedMessage
from peerbayes.learning.integer_sums import MIN_GROUP
from peerbayes.peer.agreement.summary import LARGEST
from peerbayes.peer.agreement.tree_sums import Integers, Phase, Total
from peerbayes.peer.identity.roster import Roster
from peerbayes.peer.learning.masks import KEY, NONCE, public_key
from peerbayes.peer.protocol.wire import SignedEntries, Vouched, packed

PURPOSE = b"peerbayes/site sum/1"
REACH = 32  # sites to each side in the circle that a site masks against: 64 in all

# Fewer sites than this have no sum: of two, each can subtract its own part.
FEWEST = MIN_GROUP


class Statements(SignedEntries):
    """What each site says of itself, with a proof that it is that site's."""

    subject = "statements"

    @classmethod
    def parse(cls, content: bytes) -> Statements:
        """Return statements from outside; who signed them is checked later."""
        if len(content) > LARGEST:
            raise RefusedMessage("too large", f"statements of {len(content):,} bytes; at most {LARGEST:,}")
        return super().parse(content)


def statement(roster: Roster, phase: str, name: str, content: bytes) -> bytes:
    """Return what a site vouches for."""
    return packed((b"peerbayes site statement", roster.run.encode(), phase.encode(), name.encode(), content))


def vouched_statements(
    statements: Statements, roster: Roster, phase: str, vouched: Vouched
) -> dict[str, bytes | None]:
    """Return every member's statement, in the roster's order; None: there is none that it vouched for."""
    contents: dict[str, bytes | None] = {}
    for member in roster.members:
        contents[member.name] = None
        if member.name in statements.by_member:
            content, proof = statements.by_member[member.name]
            try:
                vouched(member.name, statement(roster, phase, member.name, content), proof)
            except RefusedMessage:
                continue
            contents[member.name] = content
    return contents


def partners(names: Sequence[str], name: str) -> list[tuple[str, int]]:
    """Return the sites that one masks against, each with the sign of the mask here: + where the other comes later."""
    count, place = len(names), names.index(name)
    steps = range(1, min(REACH, count - 1) + 1)
    places = {(place + step) % count for step in steps} | {(place - step) % count for step in steps}
    return [(names[other], 1 if other > place else -1) for other in sorted(places - {place})]


def masked(
    words: np.ndarray, name: str, private: bytes, keys: Mapping[str, bytes], roster: Roster, phase: str
) -> np.ndarray:
    """Return the words [n] of a site under its masks; `keys` are the public ones of all sites in the sum, in order."""
    own_key = X25519PrivateKey.from_private_bytes(private)
    summed = words.astype(np.int64).view(np.uint64).copy()
    context = hashlib.sha256(packed([part for name, key in keys.items() for part in (name.encode(), key)]))
    for other, sign in partners(list(keys), name):
        pair = sorted((name.encode(), other.encode()))
        info = packed(
            (PURPOSE, roster.network.encode(), roster.run.encode(), phase.encode(), context.digest(), *pair)
        )
        secret = own_key.exchange(X25519PublicKey.from_public_bytes(keys[other]))
        key = HKDF(hashes.SHA256(), KEY, None, info).derive(secret)
        stream = Cipher(ChaCha20(key, NONCE), mode=None).encryptor().update(bytes(8 * summed.size))
        if sign > 0:
            summed += np.frombuffer(stream, dtype="<u8")
        else:
            summed -= np.frombuffer(stream, dtype="<u8")
    return summed.view(np.int64)


def usable_key(key: bytes) -> bool:
    """Return whether a public key can be used: 32 bytes that are no point of small order."""
    if len(key) != KEY:
        return False
    try:
        X25519PrivateKey.from_private_bytes(b"\x01" * KEY).exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError:
        return False
    return True


async def masked_sum(
    name: str,
    words: np.ndarray,
    private: bytes,
    keys: Mapping[str, bytes],
    roster: Roster,
    phase: str,
    total: Total,
) -> np.ndarray:
    """Return the sum of the words [n] of all sites that have a key, three or more; others add nothing.

    A sum that somebody falsified is any number: whoever uses it checks that some rows may have it.
    """
    if len(keys) < FEWEST:
        raise ValueError(f"{len(keys)} sites take part in a sum; expected {FEWEST} or more")
    own_sums = np.zeros(words.size, dtype=np.int64)
    if name in keys:
        assert keys[name] == public_key(private)
        own_sums = masked(words, name, private, keys, roster, phase)
    return await plain_sum(own_sums, phase, total)


async def plain_sum(words: np.ndarray, phase: str, total: Total) -> np.ndarray:
    """Return the sum of the words [n] of all sites, which everybody may see."""
    summed: Integers = await total(Phase(phase, _words_in(words.size)), Integers(words))
    return summed.values


def _words_in(size: int) -> Callable[[bytes], Integers]:
    """Return a parser of words, which may be any numbers: they are added modulo 2⁶⁴."""

    def parse(content: bytes) -> Integers:
        if len(content) != 8 * size:
            raise RefusedMessage("wrong shape", f"{len(content):,} bytes instead of {8 * size:,}")
        return Integers(np.frombuffer(content, dtype="<i8"))

    return parse
