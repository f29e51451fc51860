"""The terms of a network: what its members agreed to learn, and how. All members have the same `agreement.toml`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from peerbayes.data.arguments import refusal
from peerbayes.data.declarations import (
    NEEDED,
    Kind,
    Setting,
    SettingsFile,
    check_fields,
    choice,
    declarations,
    in_file,
    optional,
    real_number,
    text_value,
    toml_lines,
    true_or_false,
    whole_number,
)
from peerbayes.data.files import key, line, string, text_of
from peerbayes.data.kinds import KINDS
from peerbayes.data.registry import Registry, package_name
from peerbayes.errors import TermsError
from peerbayes.learning import combinations, planning
from peerbayes.learning import shared_settings as shared
from peerbayes.learning.combinations import Combination
from peerbayes.learning.few_bytes import exchange_count
from peerbayes.learning.robust.rules import RULES
from peerbayes.model.families import FAMILIES
from peerbayes.peer.agreement.column_facts import Facts, canonical, categories_in
from peerbayes.privacy.accounting import Privacy as Promise

KIND = choice(("auto", *KINDS))
NETWORK = re.compile(r"[A-Za-z0-9-]{1,40}")
PACKAGE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?", re.ASCII)
MOST = 2**31 - 1  # bytes of a message: the lengths of frames have four bytes

# The values of the settings `figures` and `evaluation`.
FIGURES = NO_FIGURES, WARN, STOP = "none", "warn", "stop"
EVALUATIONS = NO_EVALUATION, SITES = "none", "sites"

ADDED = {"added": True}
"""Marks a field that the first version did not have: where it has its default, it does not count in the digest."""


def _is_name(value: Any) -> bool:
    """Return whether a value is a name that can be written to a file: not empty, without lone surrogates."""
    return (
        isinstance(value, str) and value != "" and not any("\ud800" <= letter <= "\udfff" for letter in value)
    )


def _classes(name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise refusal(name, value, "a list of all values of the label")
    return categories_in(list(value), name)


def _packages(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(
        isinstance(package, str) and PACKAGE.fullmatch(package) for package in value
    ):
        raise refusal(name, value, "a list of names of packages, as pip writes them")
    return tuple(sorted({package_name(package) for package in value}))


def _check(part: Any, section: str = "", settings: Mapping[str, Setting] | None = None) -> None:
    """Check the settings of terms, or of a section, and keep them as plain values: 5 and 5.0 have the same digest."""
    try:
        check_fields(part, section, settings)
    except (ValueError, TypeError) as problem:
        arrived, separator, expected = str(problem).partition("; expected ")
        raise TermsError(f"{arrived}{separator}{in_file(expected)}") from problem


@dataclass(frozen=True)
class Limits:
    """Timeouts, and limits on what a peer accepts from others."""

    # fmt: off
    deadline: float = Setting(
        60.0, real_number("a positive number of seconds", above=0.0),
        "seconds that a round waits for neighbours once this peer is ready").field()
    quorum: float = Setting(
        0.5, real_number("a share of the neighbours, above 0 and at most 1", above=0.0, most=1.0),
        "share of the neighbours that must have answered for the deadline to close a round; 1: always wait for all"
    ).field()
    message_bytes: int = Setting(64 << 20, whole_number(1024, MOST), "bytes of the largest message").field()
    rows: int = Setting(
        1, whole_number(1, MOST), "fewest rows that a peer may have; few rows can be guessed").field()
    # fmt: on

    def __post_init__(self) -> None:
        _check(self, "limits")


PROMISE = declarations(Promise)


@dataclass(frozen=True)
class Privacy:
    """How a peer's messages are protected from its neighbours."""

    # fmt: off
    secure_sum: bool = shared.SECURE_SUM.field()
    epsilon: float | None = replace(
        PROMISE["epsilon"], default=None, kind=optional(PROMISE["epsilon"].kind, "for no noise"),
        help=f"{PROMISE['epsilon'].help}. None: no noise", details="It needs facts of all features, and the classes",
        example=PROMISE["epsilon"].default).field()
    delta: float = PROMISE["delta"].field()
    clip: float | str = PROMISE["clip"].field()
    bound: float = PROMISE["bound"].field()
    edge_noise: float = PROMISE["edge_noise"].field()
    colluders: int = PROMISE["colluders"].field()
    min_rows: int = PROMISE["min_rows"].field()
    rows: float | None = Setting(
        None, optional(real_number("a positive number of rows", above=0.0)),
        "public average number of rows of a peer; None: it is estimated with noise, for a part of epsilon",
        option="average_rows", example=1000.0).field()
    structure_share: float = PROMISE["structure_share"].field(**ADDED)
    # fmt: on

    def __post_init__(self) -> None:
        _check(self, "privacy")
        changed = [
            name for name in self.of_noise if getattr(self, name) != declarations(Privacy)[name].default
        ]
        if self.epsilon is None and changed:
            raise TermsError(
                f"privacy.{changed[0]} is {getattr(self, changed[0])!r} and epsilon is not given; expected epsilon, "
                "without which there is no noise"
            )

    @property
    def of_noise(self) -> tuple[str, ...]:
        """The settings that mean nothing without an epsilon."""
        return (*(name for name in PROMISE if name != "epsilon"), "rows")

    @property
    def promise(self) -> Promise | None:
        """The privacy guarantee for one row; None: there is none."""
        if self.epsilon is None:
            return None
        return Promise(**{name: getattr(self, name) for name in PROMISE})


@dataclass(frozen=True)
class Robust:
    """Defences against neighbours that may lie; for the strategies exact and crc."""

    # fmt: off
    combine: str = Setting(
        RULES[0], choice(RULES),
        "how messages are combined: mean, or clip, where no neighbour moves a peer farther than a typical one").field()
    guard: bool = Setting(
        False, true_or_false(),
        "whether links to neighbours whose models fail on a peer's own rows are cut; for similar data at all peers"
    ).field()
    # fmt: on

    def __post_init__(self) -> None:
        _check(self, "robust")
        if self.guard and self.combine != "clip":
            raise TermsError('robust.guard is true and robust.combine "mean"; a guard needs combine = "clip"')

    @property
    def acts(self) -> bool:
        """Whether any defence is active."""
        return self.combine != "mean" or self.guard


@dataclass(frozen=True)
class Terms:
    """The agreement of a network's members. Equal terms have equal digests."""

    # fmt: off
    network: Annotated[str, Setting(
        NEEDED, text_value("1 to 40 letters, digits and '-'", NETWORK.fullmatch), "the network's name", option="name")]
    label: Annotated[str, Setting(
        NEEDED, text_value("the name of the column to predict", _is_name), "the column to predict")]
    features: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The columns to learn from, each with its kind, as a section [features]; none named: all but the label."""
    facts: Mapping[str, Facts] = field(default_factory=dict, hash=False, metadata=ADDED)
    """Public facts about columns, as sections [features.NAME]; privacy.epsilon needs them."""
    classes: tuple[Any, ...] = Setting(
        (), Kind(_classes, "a list of all values of the label", (list,)),
        "all values of the label, in order; privacy.epsilon needs them, otherwise the peers determine them",
        option="", example=None).field(**ADDED)
    family: str = shared.FAMILY.field()
    strategy: str = shared.STRATEGY.field()
    start: str = shared.START.field()
    rounds: int = shared.ROUNDS.field()
    lr: float = shared.LR.field()
    local_steps: int = shared.LOCAL_STEPS.field()
    clip: float | None = shared.CLIP.field()
    limits: Limits = field(default_factory=Limits)
    """Timeouts, and limits on what a peer accepts from others, as a section [limits]."""
    privacy: Privacy = field(default_factory=Privacy, metadata=ADDED)
    """How messages are protected from neighbours, as a section [privacy]."""
    robust: Robust = field(default_factory=Robust, metadata=ADDED)
    """Defences against neighbours that may lie, as a section [robust]."""
    packages: tuple[str, ...] = Setting(
        (), Kind(_packages, "a list of names of packages, as pip writes them", (list,)),
        "packages outside peerbayes that the family and the strategy are of; none is loaded that is not named here",
        option="", example=None).field(**ADDED)
    messages: str = shared.MESSAGES.field(**ADDED)
    exchanges: int | None = shared.EXCHANGES.field(**ADDED)
    penalty: str = shared.PENALTY.field(**ADDED)
    structure: tuple[tuple[str, str], ...] | None = shared.STRUCTURE.field(**ADDED)
    select: str = shared.SELECT.field(**ADDED)
    patience: int | None = shared.PATIENCE.field(**ADDED)
    figures: str = Setting(
        "none", choice(FIGURES),
        "figures of all sites' tables before the first round: \"none\"; \"warn\", and every site is told where its own "
        "differ from the others'; or \"stop\", and then nobody begins",
        "Totals alone are told; with an epsilon, of rows, classes and missing values, for a fiftieth of the budget",
        example=None).field(**ADDED)
    tolerance: float | None = Setting(
        None, optional(real_number("a positive number", above=0.0), "for all rounds"),
        "how far a natural weight of the model may still move in a round where all peers stop together, with the "
        "strategy tree-sum; `rounds` is then a limit", example=1e-7).field(**ADDED)
    evaluation: str = Setting(
        "none", choice(EVALUATIONS),
        "after the last round: \"none\"; or \"sites\", and every site's error, log loss and AUC on its held-out rows "
        "is told to all, as far as its owner shares them (`share_figures` in peer.toml)", example=None
    ).field(**ADDED)
    # fmt: on

    def __post_init__(self) -> None:
        _check(self, settings=_settings(self.packages))
        _refuse_unnamed(self)
        for name, kind in self.features.items():
            _refuse_feature(name, kind, self.label)
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
        if self.tolerance is not None and not planning.declaration_of(self.strategy).by_sums:
            raise TermsError(
                f"tolerance is {self.tolerance:g} and strategy {self.strategy!r}, whose peers do not all have the same "
                f'model; expected "{planning.BY_SUMS}", or no tolerance'
            )
        for column in (side for pair in self.structure or () for side in pair):
            if self.features and column not in self.features:
                raise TermsError(
                    f"structure names {column!r}, which is no feature; expected columns of [features]"
                )
        _refuse_undescribed(self)
        # In canonical order, so that equal terms give equal columns in whatever order they were written.
        object.__setattr__(self, "features", dict(sorted(self.features.items())))

    @cached_property
    def digest(self) -> str:
        """sha256 of everything agreed on.

        What later versions added counts only where it differs from its default, so that older agreements keep theirs.
        """
        plain = _counted(self, asdict(self))
        for name, facts in self.facts.items():
            if not facts.edges:
                del plain["facts"][name]["edges"]
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
        bought = [("the number of rows", "rows in [privacy]")] if self.privacy.rows is None else []
        if ranges := [repr(name) for name, facts in described if facts.bought]:
            bought.append((f"the unit of {', '.join(ranges[:3])}", "mean and sd instead of range"))
        return Combination(
            strategy=self.strategy,
            family=self.family,
            start=self.start,
            local_steps=self.local_steps,
            robust="guard" if self.robust.guard else "clip" if self.robust.acts else None,
            secure_sum=self.privacy.secure_sum,
            epsilon=self.privacy.epsilon,
            edge_noise=self.privacy.edge_noise,
            messages=self.messages,
            exchanges=self.exchanges,
            select=self.select,
            evaluation=self.evaluation,
            structure=self.structure is not None,
            bought=tuple(bought) if private else (),
            gaps=tuple(name for name, facts in described if facts.missing) if private else None,
        )

    @property
    def message_rounds(self) -> int:
        """Rounds of messages: those of learning times the exchanges of messages in each."""
        return self.rounds * exchange_count(self.messages, self.exchanges)

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
        file = SettingsFile(text, where, TermsError)
        columns = file.section("features")
        sections = {
            name: file.settings(declarations(kind), f"no entry of [{name}]", name, f"{name}.")
            for name, kind in SECTIONS.items()
        }
        settings = _settings(file.content.get("packages", ()))
        values = file.settings(settings, "no setting of an agreement", further=("features", *SECTIONS))
        for name, setting in settings.items():
            if setting.default is NEEDED and name not in values:
                raise TermsError(f'{where}: {name} is missing; expected a line {name} = "..."')
        features, facts = {}, {}
        for name, declared in columns.items():
            kind, column_facts = declared, {}
            if isinstance(declared, dict):
                kind = declared.get("kind", "auto")
                column_facts = {key: value for key, value in declared.items() if key != "kind"}
            prefix = file.at("features", name)
            _refuse_feature(name, kind, values["label"], prefix)
            if column_facts:
                facts[name] = Facts.of(kind, column_facts, f"{prefix}feature {name!r:.80}")
            features[name] = kind
        try:
            parts = {name: kind(**sections[name]) for name, kind in SECTIONS.items()}
            return cls(**values, features=features, facts=facts, **parts)
        except TermsError as problem:  # valid singly, but not together
            raise TermsError(f"{where}{_line_of(text, str(problem))}: {problem}") from problem

    def to_toml(self) -> str:
        """Return a readable file that `parse` reads as these terms."""
        plain = "".join(
            f"{key(name)} = {string(kind)}\n"
            for name, kind in self.features.items()
            if name not in self.facts
        )
        described = "".join(_written(name, self.features[name], facts) for name, facts in self.facts.items())
        no_noise = self.privacy.of_noise if self.privacy.epsilon is None else ()
        return f"""\
# What the members of this network agreed on. Everybody holds the same; a change makes another network.
{toml_lines(self)}
[features]  # column = {KIND.expected}; none named: all columns but the label
{plain}{described}
[limits]
{toml_lines(self.limits)}
[privacy]
{toml_lines(self.privacy, no_noise)}
[robust]  # against neighbours that lie; clip and guard need the strategy exact or crc
{toml_lines(self.robust)}"""

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


SECTIONS: dict[str, type] = {"limits": Limits, "privacy": Privacy, "robust": Robust}


def _counted(part: Any, plain: dict[str, Any]) -> dict[str, Any]:
    """Return what counts in the digest of terms or of a section, from all that they hold."""
    for entry in fields(part):
        value = getattr(part, entry.name)
        default = entry.default if entry.default_factory is MISSING else entry.default_factory()
        if entry.metadata.get("added") and value == default:
            del plain[entry.name]
        elif is_dataclass(value):
            _counted(value, plain[entry.name])
    return plain


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


def _settings(packages: Any) -> dict[str, Setting]:
    """Return the settings of an agreement; refused families and strategies name the packages that should bring them."""
    listed_packages = packages if isinstance(packages, list | tuple) else ()
    missing = [package for package in listed_packages if isinstance(package, str)]
    hint = (
        f". The agreement takes it from the package {' or '.join(missing):.200}, which is not installed here or does "
        "not bring it: install it if you trust its authors"
    )

    def hinted(setting: Setting) -> Setting:
        def check(name: str, value: Any) -> Any:
            try:
                return setting.kind.check(name, value)
            except ValueError as problem:
                raise TermsError(f"{problem}{hint}") from problem

        return replace(setting, kind=replace(setting.kind, check=check))

    settings = declarations(Terms)
    return settings | {name: hinted(settings[name]) for name in OUTSIDE} if missing else settings


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
        if kind in KINDS and not KINDS[kind].public_facts:
            raise TermsError(
                f"{name} feature {feature!r} is {kind}, whose edges lie where the classes of all rows change, which is "
                'not released with noise; expected kind = "binned" with mean and sd, range, or edges'
            )
        if kind == "auto" or facts in (Facts(), Facts(missing=True)):
            raise TermsError(
                f"{name} feature {feature!r} is {kind!r} and not described; expected [features.{key(feature)}] with "
                'kind = "continuous" and mean and sd, or range; with kind = "binned" and the same, or edges; or with '
                'kind = "discrete" and categories'
            )


def _refuse_feature(name: Any, kind: Any, label: str, where: str = "") -> None:
    if not _is_name(name):
        raise TermsError(f"{where}a feature is called {name!r:.80}; expected the name of a column")
    if name == label:
        raise TermsError(
            f"{where}{name!r} is the label and a feature; expected it in one place: drop the feature"
        )
    try:
        KIND.check(f"feature {name!r:.80}", kind)
    except ValueError as problem:
        raise TermsError(f"{where}{problem}") from problem
