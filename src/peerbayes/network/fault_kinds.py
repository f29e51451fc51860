"""Kinds of faults of a network: which messages of a round are lost, and which peers are away.

    Loss       single messages, independently of each other, in one direction each
    Bursts     several messages in a row on the same link and in the same direction
    Flapping   hosts whose link to all others is up and down in turns
    Away       hosts that are away for a stretch of rounds, or for good
    DeadLinks  links that deliver nothing in one direction
    LossTrace  messages that are listed one by one: see `losses`

Faults combine: a message arrives if none of them loses it. All random numbers follow from the seed of the simulation,
and each from the round and the two ends of a message: strategies that send over different links lose the same messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from peerbayes.data import files
from peerbayes.data.arguments import number, one_of, path, refusal, shown, wholes
from peerbayes.data.declarations import (
    NEEDED,
    Kind,
    Setting,
    check_fields,
    choice,
    declarations,
    described,
    optional,
    real_number,
    whole_number,
)
from peerbayes.errors import TopologyError
from peerbayes.network.losses import LossTrace, keys
from peerbayes.network.topologies import MOST_NODES

Hosts = tuple[int, ...] | float

FAULT_STREAM = 6  # separates the random numbers of faults from others of the same seed


@dataclass(frozen=True)
class Draws:
    """The random numbers of one fault of a simulation.

    seed    of the simulation
    index   of the fault among those of the simulation, from 1
    nodes   the number of peers
    """

    seed: int
    index: int
    nodes: int

    def _rng(self, *purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, FAULT_STREAM, self.index, *purpose])

    def messages(self, round: int, senders: np.ndarray, receivers: np.ndarray) -> np.ndarray:
        """Return a uniform number for each message: [E], [E] -> [E]; one depends on its round and its ends alone."""
        salt = self._rng(round).integers(1 << 64, dtype=np.uint64)
        # splitmix64 (Steele, Lea and Flood 2014): a multiplication, then two rounds of shifts and multiplications.
        bits = keys(senders, receivers).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + salt
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((bits ^ (bits >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53

    def hosts(self, peers: Hosts | None) -> np.ndarray:
        """Return which peers these are: [N] of booleans. A share of them is drawn, at least one; None: all."""
        chosen = np.full(self.nodes, peers is None)
        if isinstance(peers, float):
            count = max(1, round(peers * self.nodes))
            chosen[self._rng(0).choice(self.nodes, count, replace=False)] = True
        elif peers is not None:
            chosen[list(peers)] = True
        return chosen

    def phases(self, period: int) -> np.ndarray:
        """Return where in a period each host begins, for what it hears and for what it sends: [2, N]."""
        return self._rng(0, 1).integers(period, size=(2, self.nodes))


# --- the values that faults are made of


def _peers(name: str, value: Any) -> Hosts:
    """Return a share of the peers, or their numbers."""
    if isinstance(value, list | tuple | range | np.ndarray) and np.ndim(value):
        return tuple(wholes(name, value, 0, MOST_NODES).tolist())
    if not isinstance(value, float | np.floating):  # 1 might be the peer of that number, or all
        raise refusal(name, value, PEERS)
    return number(name, value, PEERS, above=0.0, most=1.0)


def _links(name: str, value: Any) -> tuple[tuple[int, int], ...] | float:
    """Return a share of the directed links, or the (sender, receiver) of each."""
    if not isinstance(value, list | tuple) or not value:
        return number(name, value, LINKS, above=0.0, most=1.0)
    pairs = []
    for pair in value:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise refusal(name, value, LINKS)
        sender, receiver = wholes(name, pair, 0, MOST_NODES).tolist()
        if sender == receiver:
            raise refusal(name, value, "links between two different peers")
        pairs.append((sender, receiver))
    return tuple(pairs)


PEERS = "the numbers of peers, counted from 0, or a share of them, above 0 and up to 1"
LINKS = "a list of [sender, receiver], or a share of the directed links, above 0 and up to 1"
HOSTS = Setting(
    NEEDED,
    Kind(_peers, PEERS, (list, float)),
    "the peers, a list of numbers, or a share of them, drawn at random",
)
SOME = Setting(
    None, optional(HOSTS.kind, "for all"),
    "the peers whose messages may be lost, a list of numbers, or a share of them, drawn at random; None: all",
)  # fmt: skip
SHARE = Setting(
    NEEDED,
    real_number("a share of messages, above 0 and up to 1", above=0.0, most=1.0),
    "the share that is lost",
)
DIRECTION = Setting(
    "both", choice(("in", "out", "both")),
    'which messages of these peers: "in" what they should hear, "out" what they send, or "both"',
)  # fmt: skip


class Fault:
    """A kind of fault: it loses messages, or lets peers be away."""

    kind: ClassVar[str]

    def __post_init__(self) -> None:
        check_fields(self, self.kind)

    def lost(self, round: int, senders: np.ndarray, receivers: np.ndarray, draws: Draws) -> np.ndarray:
        """Return which messages of a `round` are lost: `senders` [E], `receivers` [E] -> [E] of booleans."""
        return np.zeros(len(senders), dtype=bool)

    def away(self, round: int, draws: Draws) -> np.ndarray:
        """Return which peers are away in a `round`: [N] of booleans."""
        return np.zeros(draws.nodes, dtype=bool)

    def gone(self, round: int, draws: Draws) -> np.ndarray:
        """Return which peers are away in a `round` and never come back: [N] of booleans."""
        return np.zeros(draws.nodes, dtype=bool)

    @property
    def largest(self) -> int:
        """The largest number of a peer that the fault names; −1: it names none."""
        peers = getattr(self, "peers", None)
        return max(peers) if isinstance(peers, tuple) else -1

    def _affected(
        self, peers: Hosts | None, direction: str, senders: np.ndarray, receivers: np.ndarray, draws: Draws
    ) -> np.ndarray:
        """Return which messages these peers should hear ("in"), or send ("out"), or either: [E] of booleans."""
        hosts = draws.hosts(peers)
        return (hosts[receivers] & (direction != "out")) | (hosts[senders] & (direction != "in"))

    def __str__(self) -> str:
        values = ((name, getattr(self, name)) for name in declarations(type(self)))
        return " ".join([self.kind, *(f"{name}={value}" for name, value in values if value is not None)])


@described
@dataclass(frozen=True)
class Loss(Fault):
    """Single messages that are lost, each independently of all others and in one direction.

    The message from u to v of a round may arrive while that from v to u does not. With `peers` and a `direction`: a
    host that hears little (share 1: a deaf one), or that the others hear little of.
    """

    kind: ClassVar[str] = "loss"
    share: Annotated[float, SHARE]
    peers: Annotated[Hosts | None, SOME] = SOME.default
    direction: Annotated[str, DIRECTION] = DIRECTION.default

    def lost(self, round: int, senders: np.ndarray, receivers: np.ndarray, draws: Draws) -> np.ndarray:
        unlucky = draws.messages(round, senders, receivers) < self.share
        return unlucky & self._affected(self.peers, self.direction, senders, receivers, draws)


@described
@dataclass(frozen=True)
class Bursts(Fault):
    """Messages that are lost in bursts, on each link and in each direction independently of the others.

    This is Gilbert's model: a link is good or bad, delivers everything or nothing, and changes at random. In each round
    it stays as it is with probability 1 − λ, and with λ = 1/(length·(1 − share)) it is drawn anew, bad with probability
    `share`. So bursts have a mean of `length` rounds, and the share of lost messages is `share` in every round.
    """

    kind: ClassVar[str] = "bursts"
    share: Annotated[float, Setting(
        NEEDED, real_number("a share of messages, above 0 and below 1", above=0.0, below=1.0), SHARE.help,
    )]  # fmt: skip
    length: Annotated[float, Setting(
        NEEDED, real_number("a mean number of rounds of 1/(1 − share) or more, as single losses have", least=1.0),
        "mean number of rounds that a burst lasts")]  # fmt: skip
    peers: Annotated[Hosts | None, SOME] = SOME.default
    direction: Annotated[str, DIRECTION] = DIRECTION.default

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length * (1.0 - self.share) < 1.0 - 1e-9:  # but for rounding
            raise refusal("bursts.length", self.length, declarations(Bursts)["length"].kind.expected)

    def lost(self, round: int, senders: np.ndarray, receivers: np.ndarray, draws: Draws) -> np.ndarray:
        lost = np.zeros(len(senders), dtype=bool)
        links = np.flatnonzero(self._affected(self.peers, self.direction, senders, receivers, draws))
        for earlier in range(round, 0, -1):  # back to the round in which a link was drawn anew
            if not links.size:
                break
            renewal = 1.0 if earlier == 1 else 1.0 / (self.length * (1.0 - self.share))
            numbers = draws.messages(earlier, senders[links], receivers[links])
            lost[links[numbers < renewal * self.share]] = True
            links = links[numbers >= renewal]
        return lost


@described
@dataclass(frozen=True)
class Flapping(Fault):
    """Hosts whose link to all others is up for some rounds and then down for some, in turns.

    Each host begins at a random point of its period. While a link is down, the host hears nobody ("in"), nobody hears
    it ("out"), or neither ("both"); "each": both directions are down in turns, each at times of its own.
    """

    kind: ClassVar[str] = "flapping"
    peers: Annotated[Hosts, HOSTS]
    up: Annotated[int, Setting(NEEDED, whole_number(0), "rounds that the link is up")]
    down: Annotated[int, Setting(NEEDED, whole_number(1), "rounds that it is down")]
    direction: str = Setting(
        "both", choice(("in", "out", "both", "each")), 'what is down: "in", "out", "both" or "each"'
    ).field()

    def lost(self, round: int, senders: np.ndarray, receivers: np.ndarray, draws: Draws) -> np.ndarray:
        period = self.up + self.down
        down = (round + draws.phases(period)) % period >= self.up
        deaf, unheard = down if self.direction == "each" else (down[0], down[0])
        hosts = draws.hosts(self.peers)
        return ((hosts & deaf)[receivers] & (self.direction != "out")) | (
            (hosts & unheard)[senders] & (self.direction != "in")
        )


@described
@dataclass(frozen=True)
class Away(Fault):
    """Hosts that are away: they neither send, nor hear, nor learn, and go on from where they were when they are back.

    The others do not know who is away: the weights of messages stay those of the whole network. Hosts that do not come
    back do not count in the errors of a run from the round on in which they vanish.
    """

    kind: ClassVar[str] = "away"
    peers: Annotated[Hosts, HOSTS]
    first: Annotated[int, Setting(NEEDED, whole_number(1), "the first round in which they are away")]
    last: int | None = Setting(
        None, optional(whole_number(1), "for good"), "the last round in which they are away; None: for good"
    ).field()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.last is not None and self.last < self.first:
            raise refusal(
                "away.last", self.last, f"a round from the first on, which is {self.first}, or None for good"
            )

    def away(self, round: int, draws: Draws) -> np.ndarray:
        return draws.hosts(self.peers) & (self.first <= round <= (self.last or round))

    def gone(self, round: int, draws: Draws) -> np.ndarray:
        return self.away(round, draws) & (self.last is None)


@described
@dataclass(frozen=True)
class DeadLinks(Fault):
    """Links that deliver nothing in one direction, in any round."""

    kind: ClassVar[str] = "dead-links"
    links: Annotated[tuple[tuple[int, int], ...] | float, Setting(
        NEEDED, Kind(_links, LINKS, (list, float)),
        "the (sender, receiver) of each, or a share of all directed links, drawn at random")]  # fmt: skip

    def lost(self, round: int, senders: np.ndarray, receivers: np.ndarray, draws: Draws) -> np.ndarray:
        if isinstance(self.links, float):
            return draws.messages(0, senders, receivers) < self.links
        return np.isin(keys(senders, receivers), keys(*np.array(self.links).T))

    @property
    def largest(self) -> int:
        return -1 if isinstance(self.links, float) else max(map(max, self.links))


# --- faults of a simulation, from what Python or a file has

KINDS: dict[str, type[Fault]] = {kind.kind: kind for kind in (Loss, Bursts, Flapping, Away, DeadLinks)}
TRACE = "trace"  # the kind of a `LossTrace` in files: with `file`, its path or a list of them
FAULTS_EXPECTED = (
    "a list of Loss, Bursts, Flapping, Away, DeadLinks and LossTrace, or of tables of their fields, "
    "or the path of a TOML file"
)


def faults_of(value: Any) -> tuple[Fault | LossTrace, ...]:
    """Return the faults that a `value` stands for: one or a list of them, tables, or the path of a TOML file."""
    if value is None:
        return ()
    if isinstance(value, str | Path):
        return _faults_of_file(path("faults", value, FAULTS_EXPECTED))
    values = [value] if isinstance(value, Fault | LossTrace | Mapping) else value
    if not isinstance(values, list | tuple):
        raise refusal("faults", value, FAULTS_EXPECTED, TypeError)
    return tuple(_fault_of(fault) for fault in values)


def _faults_of_file(file: Path) -> tuple[Fault | LossTrace, ...]:
    try:
        text = files.text_of(file, TopologyError)
    except TopologyError as problem:
        raise refusal("faults", str(file), FAULTS_EXPECTED, TopologyError) from problem
    content = files.table(text, str(file), TopologyError)
    if set(content) != {"faults"} or not isinstance(content["faults"], list):
        raise TopologyError(f"{file} holds {shown(list(content))}; expected [[faults]], one for each fault")
    return faults_of(content["faults"])


def _fault_of(value: Any) -> Fault | LossTrace:
    """Return a fault, also from a table with its `kind` and its fields."""
    if isinstance(value, Fault | LossTrace):
        return value
    if not isinstance(value, Mapping):
        raise refusal("faults", value, FAULTS_EXPECTED, TypeError)
    settings = dict(value)
    kind = one_of("the kind of a fault", settings.pop("kind", None), (*KINDS, TRACE))
    if kind == TRACE:
        if set(settings) != {"file"}:
            raise refusal(
                "trace", settings, "file, the path of a CSV file of lost messages, or a list of them"
            )
        return trace_of(settings["file"])
    names = declarations(KINDS[kind])
    needed = {name for name, setting in names.items() if setting.default is NEEDED}
    if not needed <= set(settings) <= set(names):
        raise refusal(
            kind, settings, f"a table of {', '.join(names)}; {', '.join(sorted(needed))} must be there"
        )
    for name in settings:
        if settings[name] is False and names[name].kind.optional:  # as files write None
            settings[name] = None
    return KINDS[kind](**settings)


def trace_of(value: Any) -> LossTrace:
    """Return a trace from the path of its CSV file, or from a list of paths."""
    paths = value if isinstance(value, list | tuple) and value else [value]
    return LossTrace.load(
        *(path("a trace", item, "the path of a CSV file of lost messages") for item in paths)
    )
