"""Pairwise masks and shared noise between neighbours: keys, groups, streams."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from peerbayes.errors import IdentityError, PeerError, RefusedMessage, TermsError
from peerbayes.learning.integer_sums import MIN_GROUP, fixed, projected, rounding, small_groups, unfixed
from peerbayes.learning.planning import mixing_weights
from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.identity.roster import Roster
from peerbayes.peer.learning.learner import Broadcaster
from peerbayes.peer.protocol.wire import SignedEntries, Vouch, Vouched, packed
from peerbayes.privacy import noise
from peerbayes.privacy.accounting import Privacy
from peerbayes.privacy.noise import Source

# --- pairwise masks: all words of a group reveal their sum, fewer reveal nothing
#     key_uw  = HKDF-SHA256(X25519(sk_u, pk_w), info)     info: network, run, round t, receiver v, group A, pair {u, w}
#     m_u     = fix(a_vu φ_u) + Σ_{w∈A, w>u} PRG(key_uw) − Σ_{w∈A, w<u} PRG(key_uw)   mod 2⁶⁴
#     Σ_u m_u = Σ_u fix(a_vu φ_u)                         every PRG(key_uw) occurs once with + and once with −
#
# PRG is ChaCha20's keystream as little-endian uint64. A mask may be used once: one message per key, round and
# receiver. The pair's names are part of `info`: otherwise a member that passed another's public key off as its own
# would make the masks between a third member and these two cancel.

MASK_PURPOSE = b"peerbayes/mask/1"
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

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.keys))

    @functools.cached_property
    def digest(self) -> str:
        """sha256 of names and keys: it differs between peers that see different groups."""
        return _digest(self.keys)


def _digest(keys: Mapping[str, bytes]) -> str:
    fields = [field for name, key in sorted(keys.items()) for field in (name.encode(), key)]
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
        info = packed((MASK_PURPOSE, *self._run, *context, *pair))
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
    return unfixed(functools.reduce(np.add, words))


# --- the members' public keys for masks, agreed on before the first round
# A member's certificate is known to all by its fingerprint in the roster, which the authority signed. So each
# vouches for its key with its certificate's key, and the keys travel as a union over the spanning tree, to everybody:
# those who mask against each other need not be neighbours. A neighbour that passes keys on can omit them, but not
# replace them.
#
# The key is made for one run on one machine and kept in its state: another run under the same terms, members and
# links has other masks. With a permanent key, a second run would use the same masks for other messages, and the
# difference of two masked messages would be that of the messages.

PURPOSE = b"peerbayes mask key"
PHASE = "mask keys"


class MaskKeys(SignedEntries):
    """Public keys by name, each with a proof that it is that member's."""

    subject = "mask keys"

    @property
    def public(self) -> dict[str, bytes]:
        """The public keys by name, without proofs."""
        return {name: key for name, (key, _) in self.by_member.items()}

    @property
    def digest(self) -> str:
        """sha256 of names and keys, without proofs: a key can be signed in more than one way."""
        return _digest(self.public)


def own_key(private: bytes, roster: Roster, name: str, vouch: Vouch) -> MaskKeys:
    """Return this peer's public key with its proof."""
    key = public_key(private)
    return MaskKeys({name: (key, vouch(_statement(roster.run, name, key)))})


def verified(keys: MaskKeys, roster: Roster, vouched: Vouched) -> None:
    """Refuse any set of keys but one of each member, vouched for by that member."""
    names = {member.name for member in roster.members}
    if unmatched := sorted(names ^ keys.by_member.keys()):
        raise PeerError(
            f"the mask keys are not those of the members: {unmatched[0]!r:.80} is in one of the two only"
        )
    for name, (key, proof) in keys.by_member.items():
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


# --- who sums whose messages where sums are secure: groups of three or more, the same for everybody with one roster


def groups(roster: Roster) -> dict[str, tuple[str, ...]]:
    """Return each receiver's group: its neighbours that are not revoked and have a group themselves (the 3-core).

    A peer with fewer than three neighbours left can neither sum nor be summed: a peer that does not mix would pull
    everybody towards itself. Without it others may have too few, and so on, until each has three or more.
    """
    members = {
        member.name: set(roster.present(member.name))
        for member in roster.members
        if member.name not in roster.revoked
    }
    while small := [name for name, others in members.items() if len(others) < MIN_GROUP]:
        for name in small:
            for other in members.pop(name):
                members.get(other, set()).discard(name)
    return {name: tuple(sorted(others)) for name, others in members.items()}


ADD_LINKS = "`peerbayes network invite … --links …` adds some for those still to join"


def refuse_small(roster: Roster, terms: Terms) -> None:
    """Refuse a network of secure sums in which somebody has fewer than three neighbours; the error names the member."""
    present = [member.name for member in roster.members if member.name not in roster.revoked]
    try:
        terms.refuse(few_neighbours=small_groups({name: roster.present(name) for name in present}))
    except TermsError as error:
        raise TermsError(
            f"{error}. {ADD_LINKS}; or revoke a member and invite it under another name"
        ) from error


# --- noise that two neighbours share, from the secret that their keys give: +Z at one end of a link, −Z at the other


def refuse_thin(roster: Roster, promise: Privacy) -> None:
    """Refuse a network in which edge noise hides too little; the error names the member."""
    if not promise.edge_noise:
        return
    try:
        noise.refuse_network(roster.adjacency(), lambda index: roster.members[index].name)
    except ValueError as error:
        raise TermsError(f"{error}. {ADD_LINKS}") from error
    try:
        noise.exposure(roster.adjacency(), promise.edge_noise, promise.colluders)
    except ValueError as error:
        raise TermsError(f"privacy.{error}") from error


def shared_sources(
    masker: Masker, keys: Mapping[str, bytes], roster: Roster
) -> Callable[[int], dict[str, tuple[Source, int]]]:
    """Return a function: release number -> by neighbour, the source of Z and its sign (+ if first in the roster)."""
    index = roster.place(masker.name)
    signs = {name: 1 if index < roster.place(name) else -1 for name in roster.neighbours(masker.name)}

    def sources(number: int) -> dict[str, tuple[Source, int]]:
        sources_by_name = {}
        for name, sign in signs.items():
            pair = sorted((masker.name.encode(), name.encode()))
            label = packed((roster.network.encode(), roster.run.encode(), number.to_bytes(8, "big"), *pair))
            sources_by_name[name] = noise.keyed(masker.secret(name, keys[name]), label), sign
        return sources_by_name

    return sources


# --- one peer's side of a strategy with secure sums: it sends masked words, and learns from its group's sum


class Words(NamedTuple):
    """A masked message: the digest of the group that it was made for, and m_u."""

    group: str
    words: np.ndarray  # uint64


class Summed(NamedTuple):
    """The result of a round: Σ_u a_vu φ_u of the group and Σ_u a_vu. None: the peer keeps its own statistics."""

    total: np.ndarray | None
    share: float = 0.0
    why: str = ""


@dataclass(frozen=True, eq=False, kw_only=True)
class Masked(Broadcaster):
    """A broadcaster whose single messages nobody can read."""

    masker: Masker
    keys: Mapping[str, bytes]
    """Public keys by name."""
    sending_weights: Mapping[str, float]
    """a_vu of each receiver v, with u this peer: senders apply the weights, since a receiver cannot."""
    _groups_by_version: dict[int, dict[str, tuple[str, ...]]] = field(default_factory=dict)

    @classmethod
    def of(cls, plain: Broadcaster, masker: Masker, keys: Mapping[str, bytes], roster: Roster) -> Masked:
        """Make a masked learner with the mixing weights of the roster's links."""
        sending_weights: dict[str, float] = {}
        if plain.neighbours:
            own_index = roster.place(masker.name)
            column = mixing_weights(plain.strategy, roster.adjacency())[:, [own_index]].toarray()[:, 0]
            sending_weights = {name: float(column[roster.place(name)]) for name in plain.neighbours}
        settings = {each.name: getattr(plain, each.name) for each in fields(plain)}
        return cls(**settings, masker=masker, keys=keys, sending_weights=sending_weights)

    @property
    def same_to_all(self) -> bool:
        return False

    @property
    def by_link(self) -> bool:
        return False  # single messages are unknown

    def apart(self, state: Any, heard: Any) -> float | None:
        return None  # single messages are unknown

    def outgoing(self, state: Any) -> dict[str, np.ndarray]:
        raise AssertionError(
            "a masked message is made for a round and a roster; nothing leaves without a mask"
        )

    def groups(self, roster: Roster) -> dict[str, tuple[str, ...]]:
        """Return the group of each receiver under a roster."""
        if roster.version not in self._groups_by_version:
            self._groups_by_version.clear()
            self._groups_by_version[roster.version] = groups(roster)
        return self._groups_by_version[roster.version]

    def hidden(self, state: Any, round_index: int, roster: Roster) -> dict[str, Words]:
        """Return the masked message of a round to every neighbour whose group includes this peer."""
        masked, all_groups = {}, self.groups(roster)
        for receiver, message in super().outgoing(state).items():
            names = all_groups.get(receiver, ())
            if self.masker.name not in names:
                continue
            group = self._group(receiver, names)
            try:
                words = self.masker.words(self.sending_weights[receiver] * message, round_index, group)
            except ValueError as error:
                raise PeerError(
                    f"nothing can be sent to {receiver} in round {round_index}: {error}. Create a network with a "
                    "larger lr, or without secure_sum"
                ) from error
            masked[receiver] = Words(group.digest, words)
        return masked

    def summed(self, state: Any, heard: Mapping[str, Words], round_index: int) -> Summed:
        """Return the group's sum, if it is complete; RefusedMessage where no honest group can have it."""
        if not heard:
            return Summed(None, why="nobody was heard")
        digests = {words.group for words in heard.values()}
        if self._group(self.masker.name, tuple(sorted(heard))).digest not in digests or len(digests) > 1:
            lacking = [name for name in self.neighbours if name not in heard]
            if not lacking:
                raise RefusedMessage(
                    "other group", "neighbours masked for other groups than the one that was heard"
                )
            return Summed(None, why=f"not heard: {', '.join(lacking)}")
        share = sum(self.weights[name] for name in heard)
        total = summed(heard[name].words for name in sorted(heard))
        classes = total.shape[-2]
        widest = max([classes, *(cells.stop - cells.start + 1 for cells in self.known.cells)])
        slack = rounding(len(heard), widest) / share
        if (violation := self.known.violation(total / share, round_index, slack)) is not None:
            raise RefusedMessage.of(violation)
        own_message = self.strategy.message(state)[0]
        conserved = self.known.sums is not None
        return Summed(projected(total, own_message, share, conserved, self.known.cells), share)

    def step(self, state: Any, heard: Any, attached: Any = None, gone: Any = None) -> Any:
        """Learn from a `Summed`."""
        own_message = self.strategy.message(state)
        mixed = own_message if heard.total is None else (1.0 - heard.share) * own_message + heard.total[None]
        return self.strategy.step(state, mixed, self.residual)

    def _group(self, receiver: str, names: tuple[str, ...]) -> Group:
        return Group(receiver, {name: self.keys[name] for name in names})
