"""The members' public keys for masks, agreed on before the first round.

A member's certificate is known to all by its fingerprint in the roster, which the authority signed. So each vouches for
its key with its certificate's key, and the keys travel as a union over the spanning tree, to everybody: those who mask
against each other need not be neighbours. A neighbour that passes keys on can omit them, but not replace them.

The key is made for one run on one machine and kept in its state: another run under the same terms, members and links
has other masks. With a permanent key, a second run would use the same masks for other messages, and the difference of
two masked messages would be that of the messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from peerbayes.peers.errors import PeerError, RefusedMessage
from peerbayes.peers.masks import KEY, packed, public_key
from peerbayes.peers.roster import Roster

PURPOSE = b"peerbayes mask key"
PHASE = "mask keys"

Vouch = Callable[[bytes], bytes]  # content -> a proof that this peer says so
Vouched = Callable[[str, bytes, bytes], None]  # refuses: name, content, proof

_entries = msgspec.msgpack.Decoder(dict[str, tuple[bytes, bytes]])


@dataclass(frozen=True)
class MaskKeys:
    """Public keys by name, each with a proof that it is that member's."""

    held: Mapping[str, tuple[bytes, bytes]]

    def __add__(self, other: MaskKeys) -> MaskKeys:
        if twice := sorted(self.held.keys() & other.held.keys()):
            raise RefusedMessage("wrong message", f"two mask keys of {twice[0]!r:.80}; expected one")
        return MaskKeys({**self.held, **other.held})

    def pack(self) -> bytes:
        return msgspec.msgpack.encode(dict(sorted(self.held.items())))

    @classmethod
    def parse(cls, content: bytes) -> MaskKeys:
        try:
            return cls(_entries.decode(content))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RefusedMessage("unreadable", f"mask keys that cannot be read: {error}") from error

    @property
    def public(self) -> dict[str, bytes]:
        """The public keys by name, without proofs."""
        return {name: key for name, (key, _) in self.held.items()}

    @property
    def digest(self) -> str:
        """sha256 of names and keys, without proofs: a key can be signed in more than one way."""
        fields = [field for name, key in sorted(self.public.items()) for field in (name.encode(), key)]
        return hashlib.sha256(packed(fields)).hexdigest()


def own_key(private: bytes, roster: Roster, name: str, vouch: Vouch) -> MaskKeys:
    """Return this peer's public key with its proof."""
    key = public_key(private)
    return MaskKeys({name: (key, vouch(_statement(roster.run, name, key)))})


def verified(keys: MaskKeys, roster: Roster, vouched: Vouched) -> None:
    """Refuse any set of keys but one of each member, vouched for by that member."""
    names = {member.name for member in roster.members}
    if unmatched := sorted(names ^ keys.held.keys()):
        raise PeerError(
            f"the mask keys are not those of the members: {unmatched[0]!r:.80} is in one of the two only"
        )
    for name, (key, proof) in keys.held.items():
        if len(key) != KEY:
            raise PeerError(f"the mask key of {name} has {len(key)} bytes; expected {KEY}")
        try:
            vouched(name, _statement(roster.run, name, key), proof)
        except RefusedMessage as error:
            raise PeerError(
                f"the mask key of {name} is not vouched for by its certificate in roster {roster.version}: {error}. "
                "Somebody replaced it on the way, or its certificate was renewed meanwhile: all peers must leave and "
                "run again"
            ) from error


def _statement(run: str, name: str, key: bytes) -> bytes:
    return packed((PURPOSE, run.encode(), name.encode(), key))
