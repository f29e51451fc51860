"""The wire format: small requests, and replies with raw numbers and their digest.

A request and a reply are msgpack of a struct; fields that this version does not know are ignored, wrong types and
oversized texts are refused before anything is used. Each message says which versions of the protocol its sender speaks,
and two peers use the highest that both do; that is checked before anything else is read. Numbers are little-endian
float64 (int64 while sums are agreed on, uint64 where they are masked), checked for length, digest and finiteness.
Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import msgspec
import numpy as np
from msgspec import UNSET, UnsetType

from peerbayes.errors import RefusedMessage

VERSION = 5  # the highest version that this program speaks; 5 has documents of runs
LOWEST = (
    4  # the oldest one that it still understands; 3 refused unknown fields, so there was no way to add any
)
LARGEST_REQUEST = 512 << 10  # bytes; requests carry no numbers, at most a roster

_encoder = msgspec.msgpack.Encoder()

Name = Annotated[
    str, msgspec.Meta(max_length=64, pattern=r"^[ -~]*\Z")
]  # fit for a log: no line breaks, no colours
Text = Annotated[str, msgspec.Meta(max_length=500)]
Whole = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]
STATEMENT = b"peerbayes statement\n"  # signed prefix: no other signature of a peer passes for a statement
PROCESS = b"peerbayes process\n"  # the same for descriptions of its processes
MOST_STATEMENTS = 1000  # statements in one request
Kind = Literal[
    "hello", "call back", "roster", "renew", "documents", "leave", "sum", "first", "round", "masked"
]
DOCUMENTS = 5  # the version from which on documents of runs can be asked for
OF_RUN = ("sum", "first", "round", "masked")  # what carries numbers, and belongs to a run
OF_ROUND = ("round", "masked")  # a round's message: plain, or one of a secure sum
# The same in all versions, so that peers can say these before they know which versions the other one speaks.
GREETINGS = ("hello", "call back", "leave")
Status = Literal["ok", "not yet", "gone", "refused"]


Digest = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
RosterDigest = Annotated[bytes, msgspec.Meta(max_length=32)]  # sha256 of what the authority signed
Signature = Annotated[bytes, msgspec.Meta(max_length=80)]  # ECDSA P-256 in DER has at most 72


class Versions(NamedTuple):
    """The versions of the protocol that a peer speaks: all from the lowest to the highest."""

    lowest: int
    highest: int

    def common(self, other: Versions) -> int | None:
        """Return the highest version that both speak; None: there is none."""
        version = min(self.highest, other.highest)
        return version if version >= max(self.lowest, other.lowest) else None

    def __contains__(self, version: object) -> bool:
        return isinstance(version, int) and self.lowest <= version <= self.highest

    def __str__(self) -> str:
        if self.lowest == self.highest:
            return f"version {self.highest}"
        return f"versions {self.lowest} to {self.highest}"

    def fields(self, version: int | None = None) -> dict[str, Any]:
        """Return the fields of a message in one of these versions, by default the highest, that say all of them.

        A bound that equals `version` is left out: a peer of version 3, which refuses fields that it does not know, can
        read the refusal of one that speaks a single version, and says which one is to be updated.
        """
        version = self.highest if version is None else version
        bounds = {"lowest": self.lowest, "highest": self.highest}
        return {"version": version} | {name: bound for name, bound in bounds.items() if bound != version}


SPOKEN = Versions(LOWEST, VERSION)


def refuse_apart(sender: str, theirs: Versions, receiver: str, ours: Versions) -> None:
    """Refuse a message of a peer that speaks no version that its receiver speaks; say which one is to be updated."""
    if ours.common(theirs) is None:
        older = sender if theirs.highest < ours.lowest else receiver
        raise RefusedMessage(
            "other version",
            f"{sender} speaks {theirs} of the protocol, {receiver} {ours}, so there is none that both speak. Update "
            f"peerbayes at {older}: pip install --upgrade peerbayes",
        )


# Signed field by field and passed on by others, so nothing can be added to the two structs below without a new version:
# whoever does not know a field would drop it, and the signature would not fit.


class Statement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A peer's statement to all its neighbours in a round: the digest of its message, and its signature of that."""

    name: Name
    round_index: Whole
    digest: Digest
    signature: Signature

    def content(self, run: str) -> bytes:
        """Return the content that is signed."""
        return statement(run, self.round_index, self.digest)


def statement(run: str, round_index: int, digest: bytes) -> bytes:
    """Return the content that a peer signs of its message of a round."""
    return STATEMENT + f"{run} {round_index} ".encode() + digest


class Process(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """A process of a peer and the length of its state; signed by that peer."""

    state: Name  # the state's own name
    start: Whole  # which start of the folder's peer this is
    id: Name  # of this process alone
    began: Whole  # rounds and releases that were stored when it started
    stored: Whole  # and that are now
    signature: Signature = b""

    def content(self, name: str) -> bytes:
        """Return the content that the peer of that name signs."""
        return PROCESS + f"{name} {self.state} {self.start} {self.id} {self.began} {self.stored}".encode()


class Versioned(msgspec.Struct, frozen=True):
    """The first field of every message."""

    version: Whole  # that it is written in


class Message(Versioned, frozen=True, kw_only=True):
    """A message that says which versions its sender speaks."""

    lowest: Whole | UnsetType = UNSET  # where it is not `version`
    highest: Whole | UnsetType = UNSET

    @property
    def spoken(self) -> Versions:
        """The versions that the sender speaks."""
        bounds = self.lowest, self.highest
        return Versions(*(self.version if bound is UNSET else bound for bound in bounds))


class Envelope(Message, frozen=True):
    """The fields of every message that are read first, the same in all versions."""

    kind: str = ""


class Request(Message, frozen=True):
    """A request from one peer to another."""

    run: Name  # which run: the roster's digest of terms, members and links
    sender: Name
    kind: Kind
    phase: Name = ""  # of the agreement
    round_index: Whole = msgspec.field(default=0, name="turn")  # the round that is asked for
    schema: Name = ""  # fingerprint, once there is one
    done: Whole = 0  # rounds that the sender has stored
    roster: Whole = 0  # the version that the sender knows
    roster_digest: RosterDigest = b""
    wait: Annotated[float, msgspec.Meta(ge=0, le=60)] = 0.0  # seconds the answer may take
    body: bytes = b""  # a signed roster that the sender thinks is newer; a certificate request to be renewed
    heard: Annotated[
        tuple[Statement, ...], msgspec.Meta(max_length=MOST_STATEMENTS)
    ] = ()  # from neighbours of both
    base: Whole | UnsetType = UNSET  # which message of the other one the sender has; 0: the common start
    process: Process | None = None  # which process of the sender asks
    shown: Process | None = None  # another one of the sender, which it was shown by the peer that it asks


class Reply(Message, frozen=True):
    """The reply to a request."""

    run: Name
    sender: Name
    kind: Kind
    status: Status
    reason: Text = ""
    phase: Name = ""  # of a masked message: the digest of the group that it was made for
    round_index: Whole = msgspec.field(default=0, name="turn")
    schema: Name = ""
    done: Whole = 0
    roster: Whole = 0
    roster_digest: RosterDigest = b""
    clock: float = 0.0  # seconds since 1970 where the sender is
    shape: Annotated[tuple[Whole, ...], msgspec.Meta(max_length=4)] = ()
    digest: Annotated[bytes, msgspec.Meta(max_length=32)] = b""
    body: bytes = b""
    base: Whole | UnsetType = UNSET  # the body is coded, beside this message; the digest is of what it says
    signature: Signature = b""  # of a round's message that goes to all neighbours alike
    missed: Annotated[int, msgspec.Meta(ge=1, le=255)] | UnsetType = UNSET  # rounds since it missed who asks
    correction: bytes | UnsetType = UNSET  # after a loss, its part of what the two ends of the link add up
    process: Process | None = None  # which process of the sender answers
    shown: Process | None = None  # where it refuses: another process of the peer that asks


# --- what members vouch for: entries that travel as a union over the spanning tree, each with its member's proof

Vouch = Callable[[bytes], bytes]  # content -> a proof that this peer says so
Vouched = Callable[[str, bytes, bytes], None]  # refuses: name, content, proof

_entries = msgspec.msgpack.Decoder(dict[str, tuple[bytes, bytes]])


def packed(fields: Iterable[bytes]) -> bytes:
    """Concatenate fields, each preceded by its length: no two lists give the same bytes."""
    return b"".join(len(field).to_bytes(4, "big") + field for field in fields)


@dataclass(frozen=True)
class SignedEntries:
    """Entries by member, each with a proof that it is that member's."""

    by_member: Mapping[str, tuple[bytes, bytes]]
    subject: ClassVar[str]

    def __add__(self, other: Self) -> Self:
        if twice := sorted(self.by_member.keys() & other.by_member.keys()):
            raise RefusedMessage("wrong message", f"two {self.subject} of {twice[0]!r:.80}; expected one")
        return type(self)({**self.by_member, **other.by_member})

    def pack(self) -> bytes:
        return _encoder.encode(dict(sorted(self.by_member.items())))

    @classmethod
    def parse(cls, content: bytes) -> Self:
        """Return entries from outside; who signed them is checked later."""
        try:
            return cls(_entries.decode(content))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RefusedMessage("unreadable", f"{cls.subject} that cannot be read: {error}") from error


# --- requests and replies as bytes

_envelopes = msgspec.msgpack.Decoder(Envelope)
_requests = msgspec.msgpack.Decoder(Request)
_replies = msgspec.msgpack.Decoder(Reply)


def encode(message: Request | Reply) -> bytes:
    return _encoder.encode(message)


def request_in(
    content: bytes, spoken: Versions = SPOKEN, caller: str = "the caller", name: str = "this peer"
) -> Request:
    """Decode a request of the caller to the peer of that name, which speaks these versions; refuse anything else."""
    if len(content) > LARGEST_REQUEST:
        raise RefusedMessage("too large", f"a request of {len(content):,} bytes; at most {LARGEST_REQUEST:,}")
    try:
        _open(content, caller, name, spoken)
        return _requests.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedMessage("unreadable", f"not a request: {error}") from error


def reply_in(content: bytes, request: Request, neighbour: str) -> Reply:
    """Decode a reply; refuse it unless it is from that neighbour, of that run, and to that request."""
    try:
        _open(content, neighbour, request.sender, request.spoken)
        reply = _replies.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedMessage("unreadable", f"not a reply: {error}") from error
    if reply.version != request.version and request.kind not in GREETINGS and reply.status != "refused":
        raise RefusedMessage(
            "other version", f"a reply in version {reply.version} to a request in version {request.version}"
        )
    if reply.sender != neighbour:
        raise RefusedMessage("speaks for another", f"{neighbour} answered in the name of {reply.sender!r}")
    if reply.status == "refused" and reply.reason.startswith("other version: "):
        raise RefusedMessage("other version", reply.reason.partition(": ")[2])
    if reply.run != request.run and request.kind in OF_RUN:
        raise RefusedMessage("wrong network", f"run {reply.run:.12} instead of {request.run:.12}")
    if reply.kind != request.kind or (reply.phase != request.phase and request.kind != "masked"):
        raise RefusedMessage(
            "wrong message", f"{reply.kind} {reply.phase} instead of {request.kind} {request.phase}"
        )
    if reply.round_index != request.round_index:
        raise RefusedMessage("wrong round", f"round {reply.round_index} instead of {request.round_index}")
    if reply.status == "ok":
        if reply.schema != request.schema:
            raise RefusedMessage("wrong schema", f"schema {reply.schema:.12} instead of {request.schema:.12}")
        is_coded = UNSET not in (reply.base, request.base)  # then its digest is checked once it is read
        if (reply.body or request.kind in OF_RUN) and not is_coded and digest_of(reply.body) != reply.digest:
            raise RefusedMessage("wrong digest", "the bytes do not match their digest")
    return reply


def numbers_in(reply: Reply, shape: tuple[int, ...], dtype: str = "<f8") -> np.ndarray:
    """Return the array of a reply; refuse another shape, NaN and infinity."""
    if reply.shape != shape:
        raise RefusedMessage("wrong shape", f"{reply.shape} in {len(reply.body):,} bytes instead of {shape}")
    return _numbers(reply.body, shape, dtype)


def correction_in(reply: Reply, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return the correction beside a message [C, K]; None: there is none."""
    return None if reply.correction is UNSET else _numbers(reply.correction, shape)


def _numbers(body: bytes, shape: tuple[int, ...], dtype: str = "<f8") -> np.ndarray:
    if len(body) != 8 * math.prod(shape):
        raise RefusedMessage("wrong shape", f"{len(body):,} bytes instead of {shape}")
    array = np.frombuffer(body, dtype=dtype).reshape(shape)
    if not np.isfinite(array).all():
        raise RefusedMessage("not finite", "NaN or infinity among the numbers")
    return array


def numbers_of(body: bytes, shape: tuple[int, ...]) -> np.ndarray:
    """Return this peer's own numbers from their wire format: float64."""
    return np.frombuffer(body, dtype="<f8").reshape(shape)


def bytes_of(array: np.ndarray) -> bytes:
    """Return numbers in wire format: float64, or uint64 for masked words."""
    return np.ascontiguousarray(array, dtype="<u8" if array.dtype == np.uint64 else "<f8").tobytes()


def digest_of(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()


def _open(content: bytes, sender: str, receiver: str, ours: Versions) -> None:
    """Refuse a message in a version that its receiver does not speak, before anything else of it is read."""
    envelope = _envelopes.decode(content)
    theirs = envelope.spoken
    if envelope.version not in theirs:
        raise RefusedMessage("unreadable", f"version {envelope.version} from a peer that speaks {theirs}")
    refuse_apart(sender, theirs, receiver, ours)
    if envelope.version not in ours and envelope.kind not in GREETINGS:
        raise RefusedMessage(
            "other version", f"a {envelope.kind:.20} in version {envelope.version}; {receiver} speaks {ours}"
        )
