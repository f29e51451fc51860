"""The settings of one peer: peer.toml, and what its owner requires of an agreement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from peerbayes.data import sources
from peerbayes.data.files import line, string, table, text_of
from peerbayes.errors import ConfigurationError, TermsError
from peerbayes.learning.robust.rules import RULES
from peerbayes.peer.agreement.terms import PRIVACY_CHECKS, ROBUST_CHECKS, Check, Terms
from peerbayes.peer.identity.keys import valid_name
from peerbayes.peer.identity.roster import valid_address

# --- what a peer's owner requires of the terms of a network, whatever the others agreed on: [require] in `peer.toml`
# A requirement is met by terms that are equal or stronger. A peer that is invited to weaker terms neither joins nor
# runs.


class Demand(NamedTuple):
    """One entry of [require]."""

    check: Check  # the values that are allowed
    agreed: Callable[[Terms], Any]  # the value in the terms
    met: Callable[[Any, Any], bool]  # (agreed value, required value) -> whether it is strong enough
    description: str  # for the reference


DEMANDS: dict[str, Demand] = {
    "epsilon": Demand(
        PRIVACY_CHECKS["epsilon"],
        lambda terms: terms.privacy.epsilon,
        lambda agreed, required: agreed is not None and agreed <= required,
        "the most that anybody may learn of one row, by all runs of this folder together",
    ),
    "delta": Demand(
        PRIVACY_CHECKS["delta"],
        lambda terms: None if terms.privacy.epsilon is None else terms.privacy.delta,
        lambda agreed, required: agreed is not None and agreed <= required,
        "the largest probability with which that may fail",
    ),
    "min_rows": Demand(
        PRIVACY_CHECKS["min_rows"],
        lambda terms: max(terms.limits.rows, terms.privacy.min_rows if terms.privacy.epsilon else 1),
        lambda agreed, required: agreed >= required,
        "the fewest rows with which any peer may take part",
    ),
    "secure_sum": Demand(
        PRIVACY_CHECKS["secure_sum"],
        lambda terms: terms.privacy.secure_sum,
        lambda agreed, required: agreed or not required,
        "whether messages are masked",
    ),
    "combine": Demand(
        ROBUST_CHECKS["combine"],
        lambda terms: terms.robust.combine,
        lambda agreed, required: RULES.index(agreed) >= RULES.index(required),
        "how messages are combined: clip, or no matter what with mean",
    ),
    "guard": Demand(
        ROBUST_CHECKS["guard"],
        lambda terms: terms.robust.guard,
        lambda agreed, required: agreed or not required,
        "whether links to neighbours whose models fail here are cut",
    ),
}


def refuse_weaker(terms: Terms, demands: Mapping[str, Any], where: str) -> None:
    """Refuse terms that are weaker than this peer's owner requires; `where` names the owner's file."""
    for name, required in demands.items():
        demand = DEMANDS[name]
        agreed = demand.agreed(terms)
        if not demand.met(agreed, required):
            raise TermsError(
                f"{where} requires {name} = {written(required)}, and the agreement of {terms.network} says "
                f"{written(agreed)}; ask the founder for a network with stronger terms, or change [require]"
            )


def written(value: Any) -> str:
    """Return a value as TOML."""
    if value is None:
        return "nothing of it"
    return str(value).lower() if isinstance(value, bool) else repr(value).replace("'", '"')


# --- a peer's settings, which its owner alone decides: `peer.toml`

# Types in peer.toml, and how errors name them; the others are texts.
EXPECTED: dict[str, tuple[tuple[type, ...], str]] = {
    "hold_out": ((float, int), "a share from 0 to below 1"),
    "show_exact_figures": ((bool,), "true or false"),
}


@dataclass(frozen=True)
class Settings:
    """The settings that a peer's owner alone decides."""

    name: str  # lower-case letters, digits and -, as in its certificate
    address: str  # host:port where neighbours reach it
    listen: str  # host:port where it listens, on this machine; left out, the address's port, everywhere
    data: str  # a file, or a SQLAlchemy URL
    query: str | None = None  # the SQL that gives the rows, where data is a URL
    hold_out: float = 0.0  # share of the rows to test on and not to learn from; each row decides for itself
    show_exact_figures: bool = False
    """With an epsilon: whether errors on this peer's rows, which carry no noise, are also shown to other machines
    (/metrics, `watch --address`). They reveal more about rows than epsilon allows."""
    require: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The least that the agreement must guarantee, as a section [require]; otherwise the peer does not run."""

    def __post_init__(self) -> None:
        valid_name(self.name)
        valid_address(self.address)
        valid_address(self.listen)
        if isinstance(self.hold_out, bool) or not 0 <= self.hold_out < 1:
            raise ConfigurationError(f"hold_out is {self.hold_out!r}; expected a share from 0 to below 1")
        for name, requirement in self.require.items():
            if name not in DEMANDS:
                raise ConfigurationError(
                    f"{name!r} is no entry of [require]; expected one of {', '.join(DEMANDS)}"
                )
            fits, expected = DEMANDS[name].check
            if not fits(requirement):
                raise ConfigurationError(f"require.{name} is {requirement!r:.80}; expected {expected}")
        outside = sources.outside(self.data) is not None  # such a source decides itself what a query is
        if not self.data or not (outside or is_url(self.data) == bool(self.query)):
            raise ConfigurationError(
                f"the data is {without_password(self.data)!r} and the query {self.query!r}; expected a file alone, or "
                f"a database's URL and a query{sources.of_packages()}"
            )

    @classmethod
    def read(cls, path: Path) -> Settings:
        """Read the settings in a file; a data path relative to the file's folder becomes absolute."""
        text = text_of(path)
        content = table(text, str(path))
        for name, value in content.items():
            if name not in cls.__dataclass_fields__:
                names = ", ".join(cls.__dataclass_fields__)
                raise ConfigurationError(
                    f"{path}{line(text, name)}: {name!r} is no setting; expected one of {names}"
                )
            if name == "require":
                if not isinstance(value, dict):
                    raise ConfigurationError(
                        f"{path}{line(text, name)}: require is {value!r:.80}; expected a section [require]"
                    )
                continue
            expected, description = EXPECTED.get(name, ((str,), "a text"))
            if not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected):
                raise ConfigurationError(
                    f"{path}{line(text, name)}: {name} is {value!r:.80}; expected {description}"
                )
        for name in ("name", "address", "data"):
            if name not in content:
                raise ConfigurationError(f'{path}: {name} is missing; expected a line {name} = "..."')
        if content["data"] and not is_url(content["data"]):
            content["data"] = str(path.absolute().parent / content["data"])
        try:
            return cls(**{"listen": everywhere(content["address"]), **content})
        except ValueError as problem:
            raise ConfigurationError(f"{path}: {problem}") from problem

    def to_toml(self, folder: Path) -> str:
        """Return the text of the file in `folder`; a data path inside it is relative, so the folder can be moved."""
        data, usual = self.data, everywhere(self.address)
        if not is_url(data):
            path = Path(data).absolute()
            data = str(
                path.relative_to(folder.absolute()) if path.is_relative_to(folder.absolute()) else path
            )
        text_lines = [
            "# The settings of one peer; they stay on its machine.",
            f"name = {string(self.name)}",
            f"address = {string(self.address)}  # where neighbours reach it",
            f"{'# ' if self.listen == usual else ''}listen = {string(self.listen)}  # where it listens on this machine",
            f"data = {string(data)}  # a .csv or .parquet file, or a database's SQLAlchemy URL",
        ]
        if self.query is not None:
            text_lines.append(f"query = {string(self.query)}  # gives the rows")
        text_lines.append(
            f"{'' if self.hold_out else '# '}hold_out = {self.hold_out or 0.2}  # share of the rows to test on, and "
            "not to learn from"
        )
        if self.show_exact_figures:
            text_lines.append(
                "show_exact_figures = true  # errors on these rows, without noise, also to other machines"
            )
        if self.require:
            text_lines += ["", "[require]  # of the agreement: this peer runs with no less"]
            text_lines += [f"{name} = {written(requirement)}" for name, requirement in self.require.items()]
        return "\n".join(text_lines) + "\n"


def is_url(data: str) -> bool:
    """Return whether data is a database's URL rather than a file."""
    return "://" in data


def without_password(data: str) -> str:
    """Return a URL without user and password, as it may be shown."""
    scheme, separator, location = data.partition("://")
    return f"{scheme}://…@{location.rpartition('@')[2]}" if separator and "@" in location else data


def everywhere(address: str) -> str:
    """Return the port of an address on all interfaces of this machine."""
    host, _, port = valid_address(address).rpartition(":")
    return f"[::]:{port}" if host.startswith("[") else f"0.0.0.0:{port}"
