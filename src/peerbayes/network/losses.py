"""Lost messages, one by one: recorded in runs of real peers, or drawn, and replayed in simulations."""

from __future__ import annotations

import csv
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from peerbayes.data.arguments import number, shown
from peerbayes.data.files import refuse_existing
from peerbayes.errors import TopologyError
from peerbayes.network.mixing import checked, pairs, whole_number
from peerbayes.network.topologies import MOST_NODES

# The columns of a trace's file, and those with the names of peers.
TRACE_COLUMNS = ("round", "sender", "receiver")
NAME_COLUMNS = ("sender_name", "receiver_name")


@dataclass(frozen=True)
class LossTrace:
    """The messages that are lost, one by one; all others arrive.

    A message is (round, sender, receiver): rounds count from 1, nodes from 0. A message is lost in one direction: where
    the other direction of a link is lost too, it is listed too.
    """

    messages: frozenset[tuple[int, int, int]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages", frozenset(map(_checked_message, self.messages)))

    @classmethod
    def drawn(
        cls,
        links: Any,
        rounds: int,
        share: float,
        rng: np.random.Generator,
        two_sided: bool = False,
        quorum: float = 0.0,
    ) -> Self:
        """Return a random trace over the links of a matrix [N,N].

        share      the share of messages that are lost
        two_sided  whether a link loses both of its messages of a round, or one of the two
        quorum     the share of its neighbours that every node hears in each round nevertheless, as the agreement of
                   real peers has it: links that would take more are spared
        """
        most = 1.0 if two_sided else 0.5  # one of the two messages of a link is half of them
        number("share", share, f"a share, from 0 to {most:g}", least=0.0, most=most, error=TopologyError)
        matrix = checked(links, connected=False)
        degrees = np.diff(matrix.indptr)
        # How many messages each node can miss in a round.
        spare = degrees - np.ceil(quorum * degrees).astype(np.int64)
        lost: set[tuple[int, int, int]] = set()
        for round_index in range(1, whole_number("rounds", rounds) + 1):
            left = spare.copy()
            for first, second in rng.permutation(pairs(matrix)).tolist():
                fails, forward = rng.random() < (share if two_sided else 2.0 * share), rng.random() < 0.5
                ways = [(first, second), (second, first)]
                ways = ways if two_sided else ways[:1] if forward else ways[1:]
                if fails and all(left[receiver] > 0 for _, receiver in ways):
                    lost.update((round_index, sender, receiver) for sender, receiver in ways)
                    left[[receiver for _, receiver in ways]] -= 1
        return cls(frozenset(lost))

    @classmethod
    def recorded(
        cls, histories: Mapping[str, Iterable[Mapping[str, Any]]], names: Sequence[str] | None = None
    ) -> Self:
        """Return what real peers missed, from the history of each: entries with `round` and `missing`.

        names  of all peers: nodes are numbered in their order, and histories may be of some of them only. None: the
               histories are of all peers, and nodes are numbered in the order of the mapping
        """
        numbers = {name: index for index, name in enumerate(histories if names is None else names)}
        lost: set[tuple[int, int, int]] = set()
        for receiver, history in histories.items():
            for entry in history:
                if strangers := [name for name in (receiver, *entry["missing"]) if name not in numbers]:
                    raise TopologyError(
                        f"{receiver} missed {strangers[0]} in round {entry['round']}, whose history is not there; "
                        "expected the histories of all peers, or the names of all"
                    )
                lost.update(
                    (entry["round"], numbers[sender], numbers[receiver]) for sender in entry["missing"]
                )
        return cls(frozenset(lost))

    @classmethod
    def load(cls, *paths: str | Path) -> Self:
        """Return the trace of CSV files that `save` wrote, of one network: what is lost by any of them.

        paths  the files. Their columns are round, sender, receiver and, with names, sender_name, receiver_name
        """
        lost: set[tuple[int, int, int]] = set()
        names: dict[int, tuple[str, str | Path]] = {}
        for path in paths:
            for message, ends in _rows(path):
                lost.add(message)
                for node, name in zip(message[1:], ends, strict=False):
                    other, file = names.setdefault(node, (name, path))
                    if other != name:
                        raise TopologyError(
                            f"node {node} is {shown(other)} in {file} and {shown(name)} in {path}; expected files of "
                            "one network, whose peers have the same numbers"
                        )
        return cls(frozenset(lost))

    def save(self, path: str | Path, names: Sequence[str] = (), overwrite: bool = False) -> None:
        """Write the trace to a CSV file at `path`, in order; `names` of all nodes are written beside their numbers.

        A file that is there is replaced only with `overwrite`.
        """
        refuse_existing(path, overwrite)
        columns = TRACE_COLUMNS + NAME_COLUMNS if names else TRACE_COLUMNS
        rows = [
            (*message, *(names[node] for node in message[1:] if names)) for message in sorted(self.messages)
        ]
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([columns, *rows])

    def lost(self, round: int, senders: np.ndarray, receivers: np.ndarray) -> np.ndarray:
        """Return which of these messages of a round are lost: [E], [E] -> [E] of booleans."""
        return np.isin(keys(senders, receivers), self._keys_by_round.get(round, ()))

    @property
    def nodes(self) -> int:
        """One more than the largest number of a node in it."""
        return max((max(message[1:]) for message in self.messages), default=-1) + 1

    @cached_property
    def _keys_by_round(self) -> dict[int, np.ndarray]:
        ends: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for round_index, sender, receiver in self.messages:
            ends[round_index].append((sender, receiver))
        return {round_index: keys(*np.array(lost).T) for round_index, lost in ends.items()}

    def __or__(self, other: LossTrace) -> Self:
        """Return the trace of the messages that are lost by this one or by another."""
        return type(self)(self.messages | other.messages)

    def __len__(self) -> int:
        return len(self.messages)

    def __str__(self) -> str:
        digest = hashlib.sha256(repr(sorted(self.messages)).encode()).hexdigest()
        return f"a trace of {len(self):,} lost messages, {digest:.16}"


def _rows(path: str | Path) -> Iterator[tuple[tuple[int, int, int], list[str]]]:
    """Yield the messages of a trace's file, each with the names of its ends if the file has them."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        header, *rows = list(csv.reader(text.splitlines())) or [[]]
    except (OSError, ValueError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise TopologyError(
            f"{shown(str(path))} cannot be read: {reason}; expected a CSV file of lost messages"
        ) from error
    if tuple(header) not in (TRACE_COLUMNS, TRACE_COLUMNS + NAME_COLUMNS):
        raise TopologyError(f"{path} begins with {shown(header)}; expected {','.join(TRACE_COLUMNS)}")
    named = header[len(TRACE_COLUMNS) :]
    for row in rows:
        numbers, names = (row[:-2], row[-2:]) if named else (row, [])
        try:
            yield _checked_message([int(value) for value in numbers]), names
        except ValueError as error:
            raise TopologyError(f"{path}: {error}; expected three whole numbers in each row") from error


def _checked_message(message: Any) -> tuple[int, int, int]:
    """Return a message of a trace as whole numbers."""
    try:
        round_index, sender, receiver = message
    except (TypeError, ValueError) as error:
        raise TopologyError(
            f"the trace has the message {shown(message)}; expected ({', '.join(TRACE_COLUMNS)})"
        ) from error
    numbers = (
        whole_number("the round of a lost message", round_index),
        whole_number("the sender of a lost message", sender, 0, MOST_NODES),
        whole_number("the receiver of a lost message", receiver, 0, MOST_NODES),
    )
    if numbers[1] == numbers[2]:
        raise TopologyError(f"the trace loses a message from node {numbers[1]} to itself; expected two nodes")
    return numbers


def keys(senders: np.ndarray, receivers: np.ndarray) -> np.ndarray:
    """Return one number for each pair of ends: [E], [E] -> [E]."""
    return senders.astype(np.int64) << 32 | receivers.astype(np.int64)
