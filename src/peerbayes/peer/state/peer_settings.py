"""The settings of one peer: peer.toml, and what its owner requires of an agreement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

from peerbayes.data import sources
from peerbayes.data.arguments import refusal
from peerbayes.data.declarations import (
    NEEDED,
    Kind,
    Setting,
    SettingsFile,
    check_fields,
    choice,
    declarations,
    optional,
    real_number,
    text_value,
    toml,
    toml_lines,
    true_or_false,
)
from peerbayes.data.files import text_of
from peerbayes.errors import ConfigurationError, IdentityError, TermsError
from peerbayes.learning.robust.rules import RULES
from peerbayes.learning.shared_settings import SECURE_SUM
from peerbayes.peer.agreement.terms import EVALUATIONS, FIGURES, PROMISE, Robust, Terms
from peerbayes.peer.identity.keys import valid_name
from peerbayes.peer.identity.roster import listens, valid_address

# --- what a peer's owner requires of the terms of a network, whatever the others agreed on: [require] in `peer.toml`
# A requirement is met by terms that are equal or stronger. A peer that is invited to weaker terms neither joins nor
# runs.


class Demand(NamedTuple):
    """One entry of [require]."""

    kind: Kind  # the values that are allowed
    agreed: Callable[[Terms], Any]  # the value in the terms
    met: Callable[[Any, Any], bool]  # (agreed value, required value) -> whether it is strong enough
    description: str  # for the reference

    @property
    def setting(self) -> Setting:
        return Setting(None, self.kind, self.description)


DEMANDS: dict[str, Demand] = {
    "epsilon": Demand(
        PROMISE["epsilon"].kind,
        lambda terms: terms.privacy.epsilon,
        lambda agreed, required: agreed is not None and agreed <= required,
        "the most that anybody may learn of one row, by all runs of this folder together",
    ),
    "delta": Demand(
        PROMISE["delta"].kind,
        lambda terms: None if terms.privacy.epsilon is None else terms.privacy.delta,
        lambda agreed, required: agreed is not None and agreed <= required,
        "the largest probability with which that may fail",
    ),
    "min_rows": Demand(
        PROMISE["min_rows"].kind,
        lambda terms: max(terms.limits.rows, terms.privacy.min_rows if terms.privacy.epsilon else 1),
        lambda agreed, required: agreed >= required,
        "the fewest rows with which any peer may take part",
    ),
    "secure_sum": Demand(
        SECURE_SUM.kind,
        lambda terms: terms.privacy.secure_sum,
        lambda agreed, required: agreed or not required,
        "whether messages are masked",
    ),
    "combine": Demand(
        declarations(Robust)["combine"].kind,
        lambda terms: terms.robust.combine,
        lambda agreed, required: RULES.index(agreed) >= RULES.index(required),
        "how messages are combined: clip, or no matter what with mean",
    ),
    "guard": Demand(
        declarations(Robust)["guard"].kind,
        lambda terms: terms.robust.guard,
        lambda agreed, required: agreed or not required,
        "whether links to neighbours whose models fail here are cut",
    ),
    "evaluation": Demand(
        declarations(Terms)["evaluation"].kind,
        lambda terms: terms.evaluation,
        lambda agreed, required: EVALUATIONS.index(agreed) <= EVALUATIONS.index(required),
        '"none": no run tells errors on this peer\'s held-out rows to all',
    ),
    "figures": Demand(
        declarations(Terms)["figures"].kind,
        lambda terms: terms.figures,
        lambda agreed, required: FIGURES.index(agreed) <= FIGURES.index(required),
        'the most that runs tell of the data before the first round: "none", "warn" or "stop"',
    ),
}


def refuse_weaker(terms: Terms, demands: Mapping[str, Any], where: str) -> None:
    """Refuse terms that are weaker than this peer's owner requires; `where` names the owner's file."""
    for name, required in demands.items():
        demand = DEMANDS[name]
        agreed = demand.agreed(terms)
        if not demand.met(agreed, required):
            said = "nothing of it" if agreed is None else toml(agreed)
            raise TermsError(
                f"{where} requires {name} = {toml(required)}, and the agreement of {terms.network} says "
                f"{said}; ask the founder for a network with stronger terms, or change [require]"
            )


# --- a peer's settings, which its owner alone decides: `peer.toml`

# The values of the setting `share_figures`.
SHARES = NAMED, ANONYMOUS, NOT_SHARED = "named", "anonymous", "none"

NAME = Kind(lambda _, value: valid_name(value), "lower-case letters, digits and '-'", (str,))
ADDRESS = Kind(lambda _, value: valid_address(value), "host:port, relay://host:port or outbound", (str,))


def _place(_: str, value: str) -> str:
    if value and not listens(valid_address(value)):
        raise IdentityError(f"the address to listen on is {value!r:.80}; expected host:port of this machine")
    return value


def _proxy(_: str, value: str) -> str:
    parts = urlsplit(value)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme != "http" or not parts.hostname or not port or parts.path.strip("/"):
        raise refusal(
            "proxy", without_password(value), '"http://host:port" or "http://user:password@host:port"'
        )
    return value


LISTEN = Kind(_place, 'host:port, or "" where it does not listen', (str,))
PROXY = Kind(_proxy, "http://host:port", (str,))


def _folders(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(path, str) and path for path in value):
        raise refusal(name, value, 'a list of folders, such as ["../other-network"]')
    return tuple(value)


@dataclass(frozen=True)
class Settings:
    """The settings that a peer's owner alone decides."""

    # fmt: off
    name: Annotated[str, Setting(
        NEEDED, NAME,
        "its name, as in its certificate: lower-case letters, digits and '-'")]
    address: Annotated[str, Setting(
        NEEDED, ADDRESS,
        "where neighbours reach it: host:port; relay://host:port of a relay where it waits; or outbound, where nobody "
        "can reach it and it opens the connections to its neighbours")]
    listen: Annotated[str, Setting(
        NEEDED, LISTEN,
        "the address where it listens, on this machine; left out: the port of its address, everywhere, or nowhere")]
    data: Annotated[str, Setting(
        NEEDED, text_value("a file, or a database's URL", lambda _: True),
        "a .csv or .parquet file, or a database's SQLAlchemy URL")]
    query: str | None = Setting(
        None, optional(text_value("a SQL query")), "the SQL that gives the rows, where data is a URL",
        example=None).field()
    proxy: str | None = Setting(
        None, optional(PROXY),
        "the HTTP proxy through which this peer reaches its neighbours and its relay, http://host:port",
        option="", example=None).field()
    hold_out: float = Setting(
        0.0, real_number("a share from 0 to below 1", least=0.0, below=1.0),
        "share of the rows to test on, and not to learn from; each row decides for itself", example=0.2).field()
    show_exact_figures: bool = Setting(
        False, true_or_false(),
        "whether errors on these rows are shown, without noise, also to other machines (/metrics, `watch --address`)",
        "With an epsilon they reveal more about rows than it allows", option="", example=None).field()
    renews: str | None = Setting(
        None, optional(text_value("a folder")),
        "the folder with which this peer renews certificates of members: the founder's, whose authority.key is then on "
        "this machine, or . where the founder named this peer a deputy",
        option="", example=None).field()
    same_rows: tuple[str, ...] = Setting(
        (), Kind(_folders, "a list of folders of peers", (list,)),
        "folders of other peers of this owner that learn from the same rows: what they release, or may, counts here "
        "too, and rows are erased in all of them. Each names the others",
        option="", example=None).field()
    share_figures: str = Setting(
        NAMED, choice(SHARES),
        "how the other sites see the errors of this one on its held-out rows, where the agreement has evaluation = "
        "\"sites\": \"named\"; \"anonymous\", in the sums of all sites only, where three or more are; or \"none\"",
        option="", example=None).field()
    # fmt: on
    require: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The least that the agreement must guarantee, as a section [require]; otherwise the peer does not run."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name, requirement in self.require.items():
            if name not in DEMANDS:
                raise ConfigurationError(
                    f"{name!r} is no entry of [require]; expected one of {', '.join(DEMANDS)}"
                )
            DEMANDS[name].kind.check(f"require.{name}", requirement)
        outside = sources.outside(self.data) is not None  # such a source decides itself what a query is
        if not self.data or not (outside or is_url(self.data) == bool(self.query)):
            raise ConfigurationError(
                f"the data is {without_password(self.data)!r} and the query {self.query!r}; expected a file alone, or "
                f"a database's URL and a query{sources.of_packages()}"
            )

    @classmethod
    def read(cls, path: Path) -> Settings:
        """Read the settings in a file; a data path relative to the file's folder becomes absolute."""
        file = SettingsFile(text_of(path), str(path))
        values = file.settings(declarations(cls), "no setting", further=("require",))
        demands = {name: demand.setting for name, demand in DEMANDS.items()}
        required = file.settings(demands, "no entry of [require]", "require", "require.")
        for name in ("name", "address", "data"):
            if name not in values:
                raise ConfigurationError(f'{path}: {name} is missing; expected a line {name} = "..."')
        if values["data"] and not is_url(values["data"]):
            values["data"] = str(path.absolute().parent / values["data"])
        if values.get("renews"):
            values["renews"] = str(path.absolute().parent / values["renews"])
        values["same_rows"] = tuple(
            str(path.absolute().parent / folder) for folder in values.get("same_rows", ())
        )
        try:
            return cls(**{"listen": everywhere(values["address"]), **values}, require=required)
        except ValueError as problem:
            raise ConfigurationError(f"{path}: {problem}") from problem

    def to_toml(self, folder: Path) -> str:
        """Return the text of the file in `folder`; a data path inside it is relative, so the folder can be moved."""
        data = self.data
        if not is_url(data):
            path = Path(data).absolute()
            data = str(
                path.relative_to(folder.absolute()) if path.is_relative_to(folder.absolute()) else path
            )
        content = toml_lines(replace(self, data=data))
        if self.listen == everywhere(self.address):
            content = content.replace("\nlisten = ", "\n# listen = ")
        if self.require:
            content += "\n[require]  # of the agreement: this peer runs with no less\n"
            content += "".join(f"{name} = {toml(value)}\n" for name, value in self.require.items())
        return f"# The settings of one peer; they stay on its machine.\n{content}"


def is_url(data: str) -> bool:
    """Return whether data is a database's URL rather than a file."""
    return "://" in data


def without_password(data: str) -> str:
    """Return a URL without user and password, as it may be shown."""
    scheme, separator, location = data.partition("://")
    return f"{scheme}://…@{location.rpartition('@')[2]}" if separator and "@" in location else data


def everywhere(address: str) -> str:
    """Return the port of an address on all interfaces of this machine; "" for one at which nobody listens."""
    if not listens(valid_address(address)):
        return ""
    host, _, port = valid_address(address).rpartition(":")
    return f"[::]:{port}" if host.startswith("[") else f"0.0.0.0:{port}"
