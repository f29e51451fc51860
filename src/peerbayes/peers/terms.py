"""The terms of a network: what its members agreed to learn, and how. Everybody holds the same `agreement.toml`."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from peerbayes.calibration import STARTS
from peerbayes.layouts import STRUCTURES
from peerbayes.layouts import known as known_families
from peerbayes.peers.documents import canonical, key, line, string, table, text_of
from peerbayes.peers.errors import TermsError
from peerbayes.secure_sums import SUMMING
from peerbayes.strategies import STRATEGIES

KINDS = ("auto", "continuous", "discrete")
NETWORK = re.compile(r"[A-Za-z0-9-]{1,40}")
MOST = 2**31 - 1  # gRPC's largest message limit, and more rounds than anybody waits for

Check = tuple[Callable[[Any], bool], str]


def _one_of(known: Iterable[str]) -> Check:
    names = tuple(known)
    return (lambda value: isinstance(value, str) and value in names), f"one of {', '.join(names)}"


def _whole(least: int) -> Check:
    return (
        lambda value: type(value) is int and least <= value <= MOST
    ), f"a whole number from {least} to {MOST}"


def _text(value: Any) -> bool:
    """A name that can be written to a file: not empty, no half of a surrogate pair."""
    return (
        isinstance(value, str) and value != "" and not any("\ud800" <= letter <= "\udfff" for letter in value)
    )


def _positive(value: Any, most: float = sys.float_info.max) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most


LIMIT_CHECKS: dict[str, Check] = {
    "deadline": (_positive, "a positive number of seconds"),
    "quorum": (lambda value: _positive(value, 1.0), "a share of the neighbours, above 0 and at most 1"),
    "message_bytes": _whole(1024),
    "rows": _whole(1),
}
PRIVACY_CHECKS: dict[str, Check] = {
    "secure_sum": (lambda value: isinstance(value, bool), "true or false"),
}
CHECKS: dict[str, Check] = {
    "network": (
        lambda value: isinstance(value, str) and NETWORK.fullmatch(value) is not None,
        "1 to 40 letters, digits and '-'",
    ),
    "label": (_text, "the name of the column to predict"),
    "family": _one_of(known_families()),
    "strategy": _one_of((*STRATEGIES, "relay", "auto")),
    "start": _one_of(STARTS),
    "rounds": _whole(1),
    "lr": (_positive, "a positive number (the paper's is 0.05)"),
    "local_steps": _whole(1),
    "clip": (lambda value: value is None or _positive(value), "a positive number, or false for no clipping"),
}
KIND = _one_of(KINDS)


@dataclass(frozen=True)
class Limits:
    """How long a peer waits, and what it takes from others."""

    deadline: float = 60.0
    """Seconds a round waits for neighbours once this peer is ready."""
    quorum: float = 0.5
    """Share of the neighbours that must have answered for the deadline to close a round; 1: always wait for all."""
    message_bytes: int = 64 << 20
    """Bytes of the largest message."""
    rows: int = 1
    """Fewest rows a peer may bring; few can be guessed."""

    def __post_init__(self) -> None:
        for name, check in LIMIT_CHECKS.items():
            _refuse(f"limits.{name}", getattr(self, name), check)
        _as_floats(self, "deadline", "quorum")


@dataclass(frozen=True)
class Privacy:
    """What hides a peer's messages from its neighbours."""

    secure_sum: bool = False
    """Whether messages are masked, so that a neighbour learns the sum of those it hears and none of them."""

    def __post_init__(self) -> None:
        for name, check in PRIVACY_CHECKS.items():
            _refuse(f"privacy.{name}", getattr(self, name), check)


@dataclass(frozen=True)
class Terms:
    """What the members of a network agreed on. Equal terms have equal digests."""

    network: str
    """The network's name."""
    label: str
    """The column to predict."""
    features: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The columns to learn from, each with its kind, as a section [features]; none named: all but the label."""
    family: str = "naive-bayes"
    """What a class looks like."""
    strategy: str = "exact"
    """How peers learn from what they hear."""
    start: str = "uniform"
    """The statistics that all begin with; all but uniform are agreed on by a sum over the rows."""
    rounds: int = 64
    """Rounds of messages."""
    lr: float = 0.05
    """The learning rate of calibration, which decides how much the start weighs."""
    local_steps: int = 1
    """Steps on a peer's own rows between two messages."""
    clip: float | None = 5.0
    """Standard deviations at which continuous columns end; false: they do not."""
    limits: Limits = field(default_factory=Limits)
    """How long a peer waits, and what it takes from others, as a section [limits]."""
    privacy: Privacy = field(default_factory=Privacy)
    """What hides messages from neighbours, as a section [privacy]."""

    def __post_init__(self) -> None:
        for name, check in CHECKS.items():
            _refuse(name, getattr(self, name), check)
        for name, kind in self.features.items():
            _refuse_feature(name, kind, self.label)
        _refuse_sums(self)
        _as_floats(self, "lr", "clip")
        # In one order, so that equal terms also give equal columns whatever order they were written in.
        object.__setattr__(self, "features", dict(sorted(self.features.items())))

    @cached_property
    def digest(self) -> str:
        """sha256 of everything agreed on.

        Sections that came later count where they say something, so that older agreements keep their digest.
        """
        plain = asdict(self)
        if self.privacy == Privacy():
            del plain["privacy"]
        return hashlib.sha256(canonical(plain)).hexdigest()

    @classmethod
    def read(cls, path: Path) -> Terms:
        """The terms in a file; TermsError with its line where they make no sense."""
        return cls.parse(text_of(path, TermsError), str(path))

    @classmethod
    def parse(cls, text: str, where: str) -> Terms:
        """The terms in a TOML text, which errors call `where`."""
        content = table(text, where, TermsError)
        features, limits = content.pop("features", {}), content.pop("limits", {})
        privacy = content.pop("privacy", {})
        for name, part in (("features", features), ("limits", limits), ("privacy", privacy)):
            if not isinstance(part, dict):
                raise TermsError(
                    f"{where}{line(text, name)}: {name} is {part!r}; expected a section [{name}]"
                )
        _known(content, (*CHECKS, "features", "limits", "privacy"), where, text)
        _known(limits, tuple(LIMIT_CHECKS), where, text, "limits")
        _known(privacy, tuple(PRIVACY_CHECKS), where, text, "privacy")
        if content.get("clip") is False:
            content["clip"] = None
        for name, value in content.items():
            _refuse(name, value, CHECKS[name], f"{where}{line(text, name)}: ")
        for name, value in limits.items():
            _refuse(f"limits.{name}", value, LIMIT_CHECKS[name], f"{where}{line(text, 'limits', name)}: ")
        for name, value in privacy.items():
            _refuse(f"privacy.{name}", value, PRIVACY_CHECKS[name], f"{where}{line(text, 'privacy', name)}: ")
        for name in ("network", "label"):
            if name not in content:
                raise TermsError(f'{where}: {name} is missing; expected a line {name} = "..."')
        for name, kind in features.items():
            _refuse_feature(name, kind, content["label"], f"{where}{line(text, 'features', name)}: ")
        try:
            return cls(**content, features=features, limits=Limits(**limits), privacy=Privacy(**privacy))
        except TermsError as error:  # each was fine, but not together
            raise TermsError(f"{where}{line(text, 'privacy', 'secure_sum')}: {error}") from None

    def to_toml(self) -> str:
        """A readable file that `parse` gives back as these terms."""
        clip = "false" if self.clip is None else repr(self.clip)
        features = "".join(f"{key(name)} = {string(kind)}\n" for name, kind in self.features.items())
        return f"""\
# What the members of this network agreed on. Everybody holds the same; a change makes another network.
network = {string(self.network)}
label = {string(self.label)}  # the column to predict

family = {string(self.family)}  # {CHECKS["family"][1]}
strategy = {string(self.strategy)}  # {CHECKS["strategy"][1]}
start = {string(self.start)}  # {CHECKS["start"][1]}
rounds = {self.rounds}
lr = {self.lr!r}
local_steps = {self.local_steps}  # steps on a peer's own rows between two messages
clip = {clip}  # continuous columns end at so many standard deviations; false: they do not

[features]  # column = {KIND[1]}; none named: all columns but the label
{features}
[limits]
deadline = {self.limits.deadline!r}  # seconds a round waits for neighbours
quorum = {self.limits.quorum!r}  # share of the neighbours that must have answered for the deadline to count
message_bytes = {self.limits.message_bytes}  # the largest message
rows = {self.limits.rows}  # the fewest rows a peer may bring

[privacy]
secure_sum = {str(self.privacy.secure_sum).lower()}  # neighbours learn sums of three or more messages, and no message
"""

    def differences(self, other: Terms) -> list[str]:
        """Where two agreements differ, a line each: "rounds: 64 against 32"."""
        ours, theirs = _flat(self), _flat(other)
        found = [
            f"{name}: {ours.get(name, 'absent')} against {theirs.get(name, 'absent')}"
            for name in dict.fromkeys((*ours, *theirs))
            if ours.get(name) != theirs.get(name)
        ]
        if bool(self.features) != bool(other.features):
            named = ("every column but the label", "those that are named")
            found.append("features: {} against {}".format(*(named if other.features else named[::-1])))
        return found


def _flat(terms: Terms) -> dict[str, str]:
    """Every setting by its dotted name, as it would be written."""
    plain = asdict(terms)
    features, limits, privacy = plain.pop("features"), plain.pop("limits"), plain.pop("privacy")
    plain |= {f"features.{name}": kind for name, kind in features.items()}
    plain |= {f"limits.{name}": value for name, value in limits.items()}
    plain |= {f"privacy.{name}": value for name, value in privacy.items()}
    return {name: "none" if value is None else str(value) for name, value in plain.items()}


def _refuse(name: str, value: Any, check: Check, where: str = "") -> None:
    fits, expected = check
    if not fits(value):
        raise TermsError(f"{where}{name} is {value!r:.80}; expected {expected}")


def _refuse_sums(terms: Terms) -> None:
    """Refuse what secure sums cannot hide, or cannot be made of."""
    if not terms.privacy.secure_sum:
        return
    if terms.strategy not in SUMMING:
        raise TermsError(
            f"secure_sum is true and strategy {terms.strategy!r}, which needs messages singly; expected one of "
            f"{', '.join(SUMMING)}"
        )
    if terms.start != "uniform" or terms.family in STRUCTURES:
        what = f"family {terms.family!r}" if terms.family in STRUCTURES else f"start {terms.start!r}"
        raise TermsError(
            f"secure_sum is true and {what}, which is agreed on by sums along a tree that tell a leaf's statistics to "
            "its neighbour; expected start 'uniform' and a family whose structure is not learned"
        )


def _refuse_feature(name: Any, kind: Any, label: str, where: str = "") -> None:
    if not _text(name):
        raise TermsError(f"{where}a feature is called {name!r:.80}; expected the name of a column")
    if name == label:
        raise TermsError(
            f"{where}{name!r} is the label and a feature; expected it in one place: drop the feature"
        )
    _refuse(f"feature {name!r:.80}", kind, KIND, where)


def _known(given: dict[str, Any], known: tuple[str, ...], where: str, text: str, *section: str) -> None:
    for name in given:
        if name not in known:
            what = f"entry of [{section[0]}]" if section else "setting of an agreement"
            raise TermsError(
                f"{where}{line(text, *section, name)}: {name!r} is no {what}; expected one of {', '.join(known)}"
            )


def _as_floats(terms: Terms | Limits, *names: str) -> None:
    """Whole numbers as the floats they stand for, so that 5 and 5.0 have one digest."""
    for name in names:
        value = getattr(terms, name)
        object.__setattr__(terms, name, None if value is None else float(value))
