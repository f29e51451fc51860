"""Documents of runs: proposals and decisions, each signed by a member with the key of its certificate.

A document is its content, the signer's certificate and a signature. The identity of a document is the digest of its
content, so that two signatures of the same words are one document. Nothing in it is used before the certificate is
known to be the one that a roster of the authority lists for that name, and the signature to be made with its key.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import msgspec

from peerbayes.errors import IdentityError
from peerbayes.peer.agreement.column_facts import canonical
from peerbayes.peer.agreement.terms import NETWORK
from peerbayes.peer.identity import keys
from peerbayes.peer.identity.roster import Roster, valid_digest

FORMAT = 1
LARGEST = 1 << 20  # bytes of a document: the terms of very wide tables
LARGEST_DECISION = 16 << 10  # the same for a decision: a certificate, and a reason
LARGEST_REASON = 500  # characters
MOST_RUNS = 1_000_000  # the highest number of a run
LONGEST = 90 * 86400.0  # seconds that a proposal may wait for approvals
LATEST = 2.0**53 / 1000  # seconds since 1970
SIGNATURE = re.compile(r"(?:[0-9a-f]{2}){1,80}")

Choice = Literal["approve", "decline"]


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    certificate: str
    content: msgspec.Raw
    signature: str


_envelopes = msgspec.json.Decoder(_Envelope)


@dataclass(frozen=True)
class Document:
    """What a member signs about a run."""

    network: str
    number: int
    """The number of the run."""
    member: str
    """Who signs it."""
    at: float
    """Seconds since 1970 when it was signed, by the member's clock."""

    PURPOSE: ClassVar[bytes]
    NOUN: ClassVar[str]
    LARGEST: ClassVar[int]

    def __post_init__(self) -> None:
        if not NETWORK.fullmatch(self.network):
            raise IdentityError(f"{self.NOUN} is of network {self.network!r:.80}; expected a network's name")
        if not 2 <= self.number <= MOST_RUNS:
            raise IdentityError(
                f"{self.NOUN} is of run {self.number}; expected a whole number from 2 to {MOST_RUNS}: run 1 is that "
                "of `network close`"
            )
        keys.valid_name(self.member)
        self._refuse_time("signed", self.at)

    def _refuse_time(self, what: str, seconds: float) -> None:
        if not math.isfinite(seconds) or not 0 <= seconds <= LATEST:
            raise IdentityError(f"{self.NOUN} is {what} at {seconds}; expected seconds since 1970")

    @cached_property
    def content(self) -> bytes:
        """The canonical text that is signed."""
        return canonical({"format": FORMAT, **asdict(self)})

    @cached_property
    def digest(self) -> str:
        """The identity of this document: sha256 of its content."""
        return hashlib.sha256(self.content).hexdigest()

    def signed(self, key: bytes, certificate: bytes) -> bytes:
        """Return the document as it is passed on, signed with a member's key."""
        signature = keys.sign(key, self.PURPOSE + self.content).hex()
        document = _packed(certificate.decode("ascii"), self.content, signature)
        if len(document) > self.LARGEST:
            raise IdentityError(
                f"{self.NOUN} has {len(document)} bytes; expected at most {self.LARGEST}: shorten its texts"
            )
        return document

    @classmethod
    def verified(cls, document: bytes, rosters: Collection[Roster], authority: bytes) -> Self:
        """Return the content of a document, once it is known that its signer wrote it.

        rosters    of the authority: one of them must list the signer's certificate
        authority  the certificate that must have issued the signer's
        """
        envelope = cls._opened(document)
        certificate = envelope.certificate.encode("utf-8", "replace")
        name = keys.name_of(certificate)
        keys.issued(certificate, authority, name)
        shown = keys.fingerprint(certificate)
        if not any(roster.has(name) and roster.member(name).certificate == shown for roster in rosters):
            raise IdentityError(
                f"{cls.NOUN} is signed with a certificate of {name} that no roster known here lists; expected the "
                "current one of a member"
            )
        keys.verify(certificate, bytes.fromhex(envelope.signature), cls.PURPOSE + bytes(envelope.content))
        content = cls.unverified(document)
        if content.member != name:
            raise IdentityError(
                f"{cls.NOUN} is of {content.member!r}, and {name} signed it; expected the same name"
            )
        return content

    @classmethod
    def unverified(cls, document: bytes) -> Self:
        """Return the content of a document that was verified before, or that says which roster it needs."""
        text = bytes(cls._opened(document).content)
        try:
            plain = msgspec.json.decode(text)
            if not isinstance(plain, dict) or plain.pop("format", None) != FORMAT:
                raise IdentityError(
                    f"the format of {cls.NOUN} is not {FORMAT}; update with `pip install --upgrade peerbayes`"
                )
            content = msgspec.convert(plain, cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise IdentityError(f"{cls.NOUN} cannot be read: {problem!s:.200}") from problem
        if content.content != text:
            raise IdentityError(
                f"{cls.NOUN} has more in it, or another form, than expected; get it again from its origin"
            )
        return content

    @classmethod
    def _opened(cls, document: bytes) -> _Envelope:
        if len(document) > cls.LARGEST:
            raise IdentityError(f"{cls.NOUN} has {len(document)} bytes; expected at most {cls.LARGEST}")
        try:
            envelope = _envelopes.decode(document)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
            raise IdentityError(f"{cls.NOUN} cannot be read: {problem!s:.200}") from problem
        content = bytes(envelope.content)
        if not SIGNATURE.fullmatch(envelope.signature) or document != _packed(
            envelope.certificate, content, envelope.signature
        ):
            raise IdentityError(
                f"{cls.NOUN} has another form than expected; expected the file that `peerbayes run` wrote"
            )
        return envelope


def _packed(certificate: str, content: bytes, signature: str) -> bytes:
    """Return the one form of a document."""
    head, tail = canonical({"certificate": certificate})[:-1], canonical({"signature": signature})[1:]
    return head + b',"content":' + content + b"," + tail


@dataclass(frozen=True)
class Proposal(Document):
    """A member proposes a run: terms, the roster whose members take part, and until when they may approve."""

    terms: str
    """The agreement, as TOML."""
    roster: int
    """The version of the roster whose members take part, but for those that it says are revoked."""
    roster_digest: str
    expires: float
    """Seconds since 1970 after which no approval counts."""
    warm_from: int | None = None
    """The run whose model this one begins with; None: it begins afresh."""

    PURPOSE = b"peerbayes run proposal\n"
    NOUN = "the proposal"
    LARGEST = LARGEST

    def __post_init__(self) -> None:
        super().__post_init__()
        valid_digest("the proposal's roster", self.roster_digest)
        self._refuse_time("to end", self.expires)
        if not self.at < self.expires <= self.at + LONGEST:
            raise IdentityError(
                f"the proposal ends {self.expires - self.at:.0f} s after it was made; expected at most "
                f"{LONGEST / 86400:.0f} days"
            )
        if not 0 <= self.roster < 2**53:
            raise IdentityError(f"the proposal's roster is {self.roster}; expected a version from 0")
        if self.warm_from is not None and not 1 <= self.warm_from < self.number:
            raise IdentityError(
                f"run {self.number} is to begin with the model of run {self.warm_from}; expected an earlier run"
            )


@dataclass(frozen=True)
class Decision(Document):
    """A member approves or declines one proposal."""

    proposal: str
    """The digest of the proposal."""
    terms: str
    """The digest of its terms, as this member read them."""
    choice: Choice
    reason: str = ""
    by: str = "owner"
    """Who decided: the owner, or a standing consent of its."""

    PURPOSE = b"peerbayes run decision\n"
    NOUN = "the decision"
    LARGEST = LARGEST_DECISION

    def __post_init__(self) -> None:
        super().__post_init__()
        valid_digest("the decision's proposal", self.proposal)
        valid_digest("the decision's terms", self.terms)
        for name, text in (("reason", self.reason), ("by", self.by)):
            if len(text) > LARGEST_REASON:
                raise IdentityError(
                    f"the decision's {name} has {len(text)} characters; expected at most {LARGEST_REASON}"
                )


def kind_of(document: bytes) -> type[Proposal] | type[Decision]:
    """Return which kind a document claims to be; IdentityError where it is none."""
    if len(document) > LARGEST:
        raise IdentityError(f"the document has {len(document)} bytes; expected at most {LARGEST}")
    try:
        content: Any = msgspec.json.decode(_envelopes.decode(document).content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise IdentityError(f"the document cannot be read: {problem!s:.200}") from problem
    return Decision if isinstance(content, dict) and "choice" in content else Proposal
