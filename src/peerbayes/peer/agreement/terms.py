"""The terms of a network: what its members agreed to learn, and how. All members have the same `agreement.toml`."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from peerbayes.data.files import key, line, string, table, text_of
from peerbayes.data.registry import Choices, Registry, package_name
from peerbayes.errors import TermsError
from peerbayes.learning import combinations, planning
from peerbayes.learning.combinations import Combination
from peerbayes.learning.robust.rules import RULES
from peerbayes.model.calibration import STARTS
from peerbayes.model.families import FAMILIES
from peerbayes.model.layout import STRUCTURES
from peerbayes.model.layout import known as known_families
from peerbayes.peer.agreement.column_facts import Facts, canonical, categories_in, listed
from peerbayes.privacy.accounting import AUTO
from peerbayes.privacy.accounting import Privacy as Promise

KINDS = ("auto", "continuous", "discrete")
NETWORK = re.compile(r"[A-Za-z0-9-]{1,40}")
PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?", re.ASCII)
MOST = 2**31 - 1  # gRPC's largest message limit, and more rounds than anybody waits for

Check = tuple[Callable[[Any], bool], str]


def _one_of(choices: Iterable[str]) -> Check:
    names = tuple(choices)
    return (lambda value: isinstance(value, str) and value in names), f"one of {', '.join(names)}"


def _registered(choices: Choices, built_in: Iterable[str]) -> Check:
    """Return the check of a name that an outside package may bring; its text has the built-in ones."""
    return (lambda value: isinstance(value, str) and value in choices), f"one of {', '.join(built_in)}"


def _integer(least: int) -> Check:
    return (
        lambda value: type(value) is int and least <= value <= MOST
    ), f"a whole number from {least} to {MOST}"


def _text(value: Any) -> bool:
    """Return whether a value is a name that can be written to a file: not empty, without lone surrogates."""
    return (
        isinstance(value, str) and value != "" and not any("\ud800" <= letter <= "\udfff" for letter in value)
    )


def _positive(value: Any, most: float = sys.float_info.max) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most


LIMIT_CHECKS: dict[str, Check] = {
    "deadline": (_positive, "a positive number of seconds"),
    "quorum": (lambda value: _positive(value, 1.0), "a share of the neighbours, above 0 and at most 1"),
    "message_bytes": _integer(1024),
    "rows": _integer(1),
}
PRIVACY_CHECKS: dict[str, Check] = {
    "secure_sum": (lambda value: isinstance(value, bool), "true or false"),
    "epsilon": (lambda value: value is None or _positive(value), "a positive number; 4 is common, 1 strict"),
    "delta": (lambda value: _positive(value) and value < 1, "a probability, such as 1e-5"),
    "clip": (lambda value: value == AUTO or _positive(value), f'a positive number, or "{AUTO}"'),
    "bound": (_positive, "a positive number of standard deviations"),
    "edge_noise": (
        lambda value: _positive(value) or (value == 0 and not isinstance(value, bool)),
        "0 for none, or a number such as 3",
    ),
    "colluders": _integer(1),
    "min_rows": _integer(1),
    "rows": (lambda value: value is None or _positive(value), "a positive number of rows"),
}
CHECKS: dict[str, Check] = {
    "network": (
        lambda value: isinstance(value, str) and NETWORK.fullmatch(value) is not None,
        "1 to 40 letters, digits and '-'",
    ),
    "label": (_text, "the name of the column to predict"),
    "family": _registered(known_families(), (*FAMILIES, *STRUCTURES)),
    "strategy": _registered(planning.choices(), planning.names()),
    "start": _one_of(STARTS),
    "rounds": _integer(1),
    "lr": (_positive, "a positive number (the paper's is 0.05)"),
    "local_steps": _integer(1),
    "clip": (lambda value: value is None or _positive(value), "a positive number, or false for no clipping"),
    "classes": (lambda value: isinstance(value, list | tuple), "a list of all values of the label"),
    "packages": (
        lambda value: (
            isinstance(value, list | tuple)
            and all(isinstance(name, str) and PACKAGE.fullmatch(name) for name in value)
        ),
        "a list of names of packages, as pip writes them",
    ),
}
KIND = _one_of(KINDS)
ROBUST_CHECKS: dict[str, Check] = {
    "combine": _one_of(RULES),
    "guard": (lambda value: isinstance(value, bool), "true or false"),
}


@dataclass(frozen=True)
class Limits:
    """Timeouts, and limits on what a peer accepts from others."""

    deadline: float = 60.0
    """Seconds a round waits for neighbours once this peer is ready."""
    quorum: float = 0.5
    """Share of the neighbours that must have answered for the deadline to close a round; 1: always wait for all."""
    message_bytes: int = 64 << 20
    """Bytes of the largest message."""
    rows: int = 1
    """Fewest rows a peer may have; few rows can be guessed."""

    def __post_init__(self) -> None:
        for name, check in LIMIT_CHECKS.items():
            _refuse(f"limits.{name}", getattr(self, name), check)
        _as_floats(self, "deadline", "quorum")


@dataclass(frozen=True)
class Privacy:
    """How a peer's messages are protected from its neighbours."""

    secure_sum: bool = False
    """Whether messages are masked, so that a neighbour learns only the sum of those it receives."""
    epsilon: float | None = None
    """ε of differential privacy for one row over the whole run; left out: no noise."""
    delta: float = Promise.delta
    """δ, the probability with which that may fail; far below one in the number of rows."""
    clip: float | str = Promise.clip
    """How far one row may move a message, in lengths of a typical row; auto: 1, less where noise dominates."""
    bound: float = Promise.bound
    """Standardised values are clipped to ±bound."""
    edge_noise: float = Promise.edge_noise
    """Noise that two neighbours add with opposite signs, beside their own; 3 is a good value, 0 means none."""
    colluders: int = Promise.colluders
    """How many peers may collude; only edge noise depends on it."""
    min_rows: int = Promise.min_rows
    """A peer with fewer rows takes no part."""
    rows: float | None = None
    """Public average number of rows of a peer; left out: it is estimated with noise, for a part of epsilon."""

    def __post_init__(self) -> None:
        for name, check in PRIVACY_CHECKS.items():
            _refuse(f"privacy.{name}", getattr(self, name), check)
        _as_floats(self, "epsilon", "delta", "bound", "edge_noise", "rows")
        if self.clip != AUTO:
            _as_floats(self, "clip")
        changed = [
            name
            for name in PRIVACY_CHECKS
            if name not in ("secure_sum", "epsilon") and getattr(self, name) != getattr(Privacy, name)
        ]
        if self.epsilon is None and changed:
            raise TermsError(
                f"privacy.{changed[0]} is {getattr(self, changed[0])!r} and epsilon is not given; expected epsilon, "
                "without which there is no noise"
            )

    @property
    def promise(self) -> Promise | None:
        """The privacy guarantee for one row; None: there is none."""
        if self.epsilon is None:
            return None
        return Promise(
            self.epsilon, self.delta, self.clip, self.bound, self.edge_noise, self.colluders, self.min_rows
        )


@dataclass(frozen=True)
class Robust:
    """Defences against neighbours that may lie; for the strategies exact and crc."""

    combine: str = "mean"
    """How messages are combined: mean, or clip, where no neighbour moves a peer farther than a typical one."""
    guard: bool = False
    """Whether links to neighbours whose models fail on a peer's own rows are cut; for similar data at all peers."""

    def __post_init__(self) -> None:
        for name, check in ROBUST_CHECKS.items():
            _refuse(f"robust.{name}", getattr(self, name), check)
        if self.guard and self.combine != "clip":
            raise TermsError('robust.guard is true and robust.combine "mean"; a guard needs combine = "clip"')

    @property
    def acts(self) -> bool:
        """Whether any defence is active."""
        return self.combine != "mean" or self.guard


@dataclass(frozen=True)
class Terms:
    """The agreement of a network's members. Equal terms have equal digests."""

    network: str
    """The network's name."""
    label: str
    """The column to predict."""
    features: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The columns to learn from, each with its kind, as a section [features]; none named: all but the label."""
    facts: Mapping[str, Facts] = field(default_factory=dict, hash=False)
    """Public facts about columns, as sections [features.NAME]; privacy.epsilon needs them."""
    classes: tuple[Any, ...] = ()
    """All values of the label, in order; privacy.epsilon needs them, otherwise the peers determine them."""
    family: str = "naive-bayes"
    """The family of class distributions."""
    strategy: str = "exact"
    """How peers learn from the messages they receive."""
    start: str = "uniform"
    """The initial statistics; all but uniform are computed by a sum over all rows."""
    rounds: int = 64
    """Rounds of messages."""
    lr: float = 0.05
    """The learning rate of calibration, which determines the weight of the start."""
    local_steps: int = 1
    """Steps on a peer's own rows between two messages."""
    clip: float | None = 5.0
    """Standard deviations at which continuous columns are clipped; false: no clipping."""
    limits: Limits = field(default_factory=Limits)
    """Timeouts, and limits on what a peer accepts from others, as a section [limits]."""
    privacy: Privacy = field(default_factory=Privacy)
    """How messages are protected from neighbours, as a section [privacy]."""
    robust: Robust = field(default_factory=Robust)
    """Defences against neighbours that may lie, as a section [robust]."""
    packages: tuple[str, ...] = ()
    """Packages outside peerbayes that the family and the strategy are of; none is loaded that is not named here."""

    def __post_init__(self) -> None:
        _refuse("packages", self.packages, CHECKS["packages"])
        object.__setattr__(self, "packages", tuple(sorted({package_name(name) for name in self.packages})))
        for name, check in CHECKS.items():
            _refuse(name, getattr(self, name), check, packages=self.packages)
        _refuse_unnamed(self)
        for name, kind in self.features.items():
            _refuse_feature(name, kind, self.label)
        object.__setattr__(self, "classes", categories_in(list(self.classes), "classes"))
        if len(self.classes) == 1:
            raise TermsError(f"classes is {list(self.classes)}; expected two or more")
        if unknown := sorted(set(self.facts) - set(self.features)):
            raise TermsError(
                f"the column {unknown[0]!r} is described, but is not a feature; expected its kind too"
            )
        object.__setattr__(
            self,
            "facts",
            dict(sorted((name, facts) for name, facts in self.facts.items() if facts != Facts())),
        )
        if self.privacy.epsilon is None and (self.facts or self.classes):
            declared = (
                "classes are named" if self.classes else f"feature {next(iter(self.facts))!r} is described"
            )
            raise TermsError(
                f"privacy.epsilon is not given and {declared}; without it the peers determine that: leave it out"
            )
        self.refuse()
        _refuse_undescribed(self)
        _as_floats(self, "lr", "clip")
        # In canonical order, so that equal terms give equal columns in whatever order they were written.
        object.__setattr__(self, "features", dict(sorted(self.features.items())))

    @cached_property
    def digest(self) -> str:
        """sha256 of everything agreed on.

        Sections added in later versions count only where they differ from their defaults, so that older agreements keep
        their digest.
        """
        plain = asdict(self)
        if self.privacy == Privacy():
            del plain["privacy"]
        if self.robust == Robust():
            del plain["robust"]
        for name in ("facts", "classes", "packages"):
            if not plain[name]:
                del plain[name]
        return hashlib.sha256(canonical(plain)).hexdigest()

    def load_packages(self) -> None:
        """Import the family and the strategy of outside packages; ExtensionError where one is broken."""
        for registry, name in _outside(self.family, self.strategy):
            registry[name]
        self.refuse()  # now that it is known what they declare

    def refuse(self, error: type[Exception] = TermsError, **facts: Any) -> None:
        """Refuse settings that do not go together, by the facts known so far: see `combinations`."""
        combinations.refuse(replace(self.combination, **facts), error)

    @property
    def combination(self) -> Combination:
        """The settings that rules relate to each other; with an epsilon also what is bought or may be missing."""
        private, described = self.privacy.epsilon is not None, self.facts.items()
        rows, ranges = self.privacy.rows, [name for name, facts in described if facts.bought]
        bought = (
            (("the number of rows", "rows in [privacy]"), rows is None),
            (
                (f"the unit of {', '.join(map(repr, ranges[:3]))}", "mean and sd instead of range"),
                bool(ranges),
            ),
        )
        return Combination(
            strategy=self.strategy,
            family=self.family,
            start=self.start,
            local_steps=self.local_steps,
            robust="guard" if self.robust.guard else "clip" if self.robust.acts else None,
            secure_sum=self.privacy.secure_sum,
            epsilon=self.privacy.epsilon,
            edge_noise=self.privacy.edge_noise,
            bought=tuple(words for words, applies in bought if applies) if private else (),
            gaps=tuple(name for name, facts in described if facts.missing) if private else None,
        )

    @property
    def texts(self) -> tuple[str, ...]:
        """Columns whose values are text by agreement, whatever a table's rows look like."""
        named = {self.label: self.classes} | {name: facts.categories for name, facts in self.facts.items()}
        return tuple(
            name for name, values in named.items() if any(isinstance(value, str) for value in values)
        )

    @classmethod
    def read(cls, path: Path) -> Terms:
        """Read the terms in a file; TermsError with the line number if they are not valid."""
        return cls.parse(text_of(path, TermsError), str(path))

    @classmethod
    def parse(cls, text: str, where: str) -> Terms:
        """Parse the terms in a TOML text, which errors call `where`."""
        content = table(text, where, TermsError)
        sections = {name: content.pop(name, {}) for name in ("features", *SECTIONS)}
        for name, section_value in sections.items():
            if not isinstance(section_value, dict):
                raise TermsError(
                    f"{where}{line(text, name)}: {name} is {section_value!r}; expected a section [{name}]"
                )
        _refuse_unknown(content, (*CHECKS, *sections), where, text)
        for section, (_, checks) in SECTIONS.items():
            _refuse_unknown(sections[section], tuple(checks), where, text, section)
        if content.get("clip") is False:
            content["clip"] = None
        for name, value in content.items():
            _refuse(name, value, CHECKS[name], f"{where}{line(text, name)}: ", content.get("packages", ()))
        for section, (_, checks) in SECTIONS.items():
            for name, value in sections[section].items():
                _refuse(f"{section}.{name}", value, checks[name], f"{where}{line(text, section, name)}: ")
        for name in ("network", "label"):
            if name not in content:
                raise TermsError(f'{where}: {name} is missing; expected a line {name} = "..."')
        features, facts = {}, {}
        for name, declared in sections["features"].items():
            kind, column_facts = declared, {}
            if isinstance(declared, dict):
                kind = declared.get("kind", "auto")
                column_facts = {key: value for key, value in declared.items() if key != "kind"}
            prefix = f"{where}{line(text, 'features', name)}: "
            _refuse_feature(name, kind, content["label"], prefix)
            if column_facts:
                facts[name] = Facts.of(kind, column_facts, f"{prefix}feature {name!r:.80}")
            features[name] = kind
        if "classes" in content:
            content["classes"] = categories_in(content["classes"], f"{where}{line(text, 'classes')}: classes")
        try:
            section_values = {name: kind(**sections[name]) for name, (kind, _) in SECTIONS.items()}
            return cls(**content, features=features, facts=facts, **section_values)
        except TermsError as problem:  # valid singly, but not together
            raise TermsError(f"{where}{_line_of(text, str(problem))}: {problem}") from problem

    def to_toml(self) -> str:
        """Return a readable file that `parse` reads as these terms."""
        clip = "false" if self.clip is None else repr(self.clip)
        plain = "".join(
            f"{key(name)} = {string(kind)}\n"
            for name, kind in self.features.items()
            if name not in self.facts
        )
        described = "".join(_written(name, self.features[name], facts) for name, facts in self.facts.items())
        classes = f"classes = {listed(self.classes)}  # all values of the label\n" if self.classes else ""
        named = f"packages = {listed(self.packages)}  # that the family and the strategy are of; install them first\n"
        packages = named if self.packages else ""
        return f"""\
# What the members of this network agreed on. Everybody holds the same; a change makes another network.
network = {string(self.network)}
label = {string(self.label)}  # the column to predict
{classes}
family = {string(self.family)}  # {CHECKS["family"][1]}
strategy = {string(self.strategy)}  # {CHECKS["strategy"][1]}
{packages}start = {string(self.start)}  # {CHECKS["start"][1]}
rounds = {self.rounds}
lr = {self.lr!r}
local_steps = {self.local_steps}  # steps on a peer's own rows between two messages
clip = {clip}  # continuous columns end at so many standard deviations; false: they do not

[features]  # column = {KIND[1]}; none named: all columns but the label
{plain}{described}
[limits]
deadline = {self.limits.deadline!r}  # seconds a round waits for neighbours
quorum = {self.limits.quorum!r}  # share of the neighbours that must have answered for the deadline to count
message_bytes = {self.limits.message_bytes}  # the largest message
rows = {self.limits.rows}  # the fewest rows a peer may bring

[privacy]
secure_sum = {str(self.privacy.secure_sum).lower()}  # neighbours learn sums of three or more messages, and no message
{_promised(self.privacy)}
[robust]  # against neighbours that lie; clip and guard need the strategy exact or crc
combine = {string(self.robust.combine)}  # {ROBUST_CHECKS["combine"][1]}
guard = {str(self.robust.guard).lower()}  # cut links to neighbours whose models fail on a peer's own rows
"""

    def differences(self, other: Terms) -> list[str]:
        """Return the differences between two agreements, a line each: "rounds: 64 against 32"."""
        own_settings, other_settings = _flat(self), _flat(other)
        differences = [
            f"{name}: {own_settings.get(name, 'absent')} against {other_settings.get(name, 'absent')}"
            for name in dict.fromkeys((*own_settings, *other_settings))
            if own_settings.get(name) != other_settings.get(name)
        ]
        if bool(self.features) != bool(other.features):
            named = ("every column but the label", "those that are named")
            differences.append("features: {} against {}".format(*(named if other.features else named[::-1])))
        return differences


SECTIONS: dict[str, tuple[Callable[..., Any], dict[str, Check]]] = {
    "limits": (Limits, LIMIT_CHECKS),
    "privacy": (Privacy, PRIVACY_CHECKS),
    "robust": (Robust, ROBUST_CHECKS),
}


def _flat(terms: Terms) -> dict[str, str]:
    """Return every setting by its dotted name, as text."""
    plain = asdict(terms)
    features, _ = plain.pop("features"), plain.pop("facts")
    plain |= {f"features.{name}": kind for name, kind in features.items()}
    for name, facts in terms.facts.items():
        plain |= {f"features.{name}.{entry}": value for entry, value in facts.written()}
    plain["classes"], plain["packages"] = list(terms.classes), list(terms.packages)
    for section in SECTIONS:
        plain |= {f"{section}.{name}": value for name, value in plain.pop(section).items()}
    return {name: "none" if value is None else str(value) for name, value in plain.items()}


def _refuse(name: str, value: Any, check: Check, where: str = "", packages: Iterable[Any] = ()) -> None:
    """Refuse a value that does not fit; `packages` are those that should bring the family and the strategy."""
    fits, expected = check
    if not fits(value):
        if name in OUTSIDE:
            expected = ", ".join([expected, *OUTSIDE[name].names()[len(OUTSIDE[name].data) :]])
            if missing := [package for package in packages if isinstance(package, str)]:
                expected += (
                    f". The agreement takes it from the package {' or '.join(missing):.200}, which is not installed "
                    "here or does not bring it: install it if you trust its authors"
                )
        raise TermsError(f"{where}{name} is {value!r:.80}; expected {expected}")


# What an outside package may bring to an agreement, by the name of the setting.
OUTSIDE: dict[str, Registry[Any]] = {"family": FAMILIES, "strategy": planning.registry()}


def _outside(family: str, strategy: str) -> list[tuple[Registry[Any], str]]:
    """Return which of the two an installed outside package brings; nothing is imported."""
    names = ((FAMILIES, family), (planning.registry(), strategy))
    return [(registry, name) for registry, name in names if name in registry and registry.package(name)]


def packages_of(family: str, strategy: str) -> tuple[str, ...]:
    """Return the packages here that a family and a strategy are of; none for built-in ones."""
    return tuple(str(registry.package(name)) for registry, name in _outside(family, strategy))


def _refuse_unnamed(terms: Terms) -> None:
    """Refuse a family or a strategy of a package that the agreement does not name: nobody accepted its code."""
    for registry, name in _outside(terms.family, terms.strategy):
        if (package := registry.package(name)) not in terms.packages:
            expected = f'packages = ["{package}"], so that every member accepts its code'
            if terms.packages:
                named = " or ".join(terms.packages)
                expected = f"it of {named}, which the agreement names; or in the agreement {expected}"
            raise TermsError(
                f"{registry.kind} is {name!r}, which is of the package {package} here; expected {expected}"
            )


def _line_of(text: str, problem: str) -> str:
    """Return the line of the setting that a problem begins with, as text."""
    name = problem.split(" ", 1)[0]
    if "." in name:
        return line(text, *name.split(".", 1))
    return next(
        (location for section in ("", *SECTIONS) if (location := line(text, *filter(None, (section, name))))),
        "",
    )


def _written(name: str, kind: str, facts: Facts) -> str:
    """Return a section [features.NAME]."""
    entries = (("kind", string(kind)), *facts.written())
    return f"\n[features.{key(name)}]\n" + "".join(f"{entry} = {value}\n" for entry, value in entries)


PROMISED = {
    "delta": "the probability with which that may fail",
    "clip": 'how far one row may move a message; "auto" chooses',
    "bound": "standardised values are held within so many standard deviations",
    "edge_noise": "noise that neighbours share, beside their own; 0: none",
    "colluders": "peers that may put together what they know; for edge_noise",
    "min_rows": "a peer with fewer takes no part",
    "rows": "of a peer on average, as far as everybody may know; left out: bought",
}


def _promised(privacy: Privacy) -> str:
    """Return the lines of [privacy] on noise."""
    if privacy.epsilon is None:
        return "# epsilon = 4.0  # how much anybody may learn of one row; needs public facts of features and classes\n"
    text_lines = [
        f"epsilon = {privacy.epsilon!r}  # how much anybody may learn of one row, over the whole run\n"
    ]
    for name, comment in PROMISED.items():
        value = getattr(privacy, name)
        shown = string(value) if isinstance(value, str) else "1000.0" if value is None else repr(value)
        text_lines.append(f"{'# ' if value is None else ''}{name} = {shown}  # {comment}\n")
    return "".join(text_lines)


# Integers up to here are exact in a column of floats.
MOST_EXACT = 1 << 53


def _refuse_undescribed(terms: Terms) -> None:
    """Refuse terms with an epsilon and columns that are not described: nothing may be learned of them without noise."""
    if terms.privacy.epsilon is None:
        return
    name = f"epsilon is {terms.privacy.epsilon:g} and"
    if not terms.features:
        raise TermsError(
            f"{name} no features are named; expected every one, with what is known of it in public"
        )
    if not terms.classes:
        raise TermsError(f"{name} no classes are named; expected classes = [...], all values of the label")
    values = [*terms.classes, *(value for facts in terms.facts.values() for value in facts.categories)]
    if large := [value for value in values if not isinstance(value, str) and abs(value) > MOST_EXACT]:
        raise TermsError(
            f"{name} the category {large[0]!r:.40}, which a table with a gap in that column would hold rounded; "
            "expected numbers up to 2^53, or text"
        )
    for feature, kind in terms.features.items():
        facts = terms.facts.get(feature, Facts())
        if kind == "auto" or not (facts.categories if kind == "discrete" else facts.sd or facts.range):
            raise TermsError(
                f"{name} feature {feature!r} is {kind!r} and not described; expected [features.{key(feature)}] with "
                'kind = "continuous" and mean and sd, or range; or with kind = "discrete" and categories'
            )


def _refuse_feature(name: Any, kind: Any, label: str, where: str = "") -> None:
    if not _text(name):
        raise TermsError(f"{where}a feature is called {name!r:.80}; expected the name of a column")
    if name == label:
        raise TermsError(
            f"{where}{name!r} is the label and a feature; expected it in one place: drop the feature"
        )
    _refuse(f"feature {name!r:.80}", kind, KIND, where)


def _refuse_unknown(
    entries: dict[str, Any], allowed: tuple[str, ...], where: str, text: str, *section: str
) -> None:
    for name in entries:
        if name not in allowed:
            noun = f"entry of [{section[0]}]" if section else "setting of an agreement"
            raise TermsError(
                f"{where}{line(text, *section, name)}: {name!r} is no {noun}; expected one of {', '.join(allowed)}"
            )


def _as_floats(terms: Terms | Limits | Privacy, *names: str) -> None:
    """Convert integers to floats, so that 5 and 5.0 have the same digest."""
    for name in names:
        value = getattr(terms, name)
        object.__setattr__(terms, name, None if value is None else float(value))
