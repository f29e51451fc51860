"""Messages of few bytes: values rounded before they are sent, and what rounding left out added to later ones.

A strategy's message is a matrix x [..., C, K]. What a peer shows of it, x̂, follows x by differences of few bits:

    q = round((x − x̂) / s)        x̂ ← x̂ + s·q        s a power of two per column of features, |q| ≤ 127

x stays unrounded, so x − x̂ holds what was left out so far, and the next difference makes up for it. x̂ begins at the
common start, which all know, on the grid of the smallest s. Neighbours mix x̂, several times in a round of learning, and
x moves by what the mix did:

    x_v ← x_v + Σ_u a_vu x̂_u − x̂_v

The sum over peers of x moves as it would unrounded. As x settles, differences and with them s become smaller, so x̂
comes as close to x as float64 allows. Where class sums are conserved, q of the last class is minus the sum of the
others: it is not sent, and the class sums of x̂ stay to the last bit.

A message is x̂ itself, so one that is lost matters to nobody but its receiver, which is one mix behind. What is sent of
it is another matter: its difference from an earlier x̂ that the receiver has, see `peerbayes.peer.protocol.coding`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import array_namespace

from peerbayes.data.table import Array
from peerbayes.learning.strategies import Declaration, LearningSettings, Residual, declared

# The forms of a message's numbers, and how many exchanges of messages a round of learning has by default.
FORMS = {"float64": 1, "float32": 1, "int8": 4}

# The largest q of each form of integers, and its bytes.
LARGEST, BYTES = {"int8": 127, "int16": 32767}, {"float64": 8, "float32": 4, "int16": 2, "int8": 1}

# Sums of the same numbers in another order differ in their last bits. Halves, and largest changes that just fit, are
# common among counts: they are rounded alike as long as they differ by less than 1 / CLEAR of s.
CLEAR = 2.0**20

# x̂ is a multiple of s of all rounds so far: as long as s is not below this many bits of x, its sums are exact.
SPARE_BITS = 4


@dataclass(frozen=True)
class Rounding:
    """How the numbers of messages are rounded.

    form       "float64" (not at all), "float32", "int8", or "int16" for numbers that are not sent again
    conserved  whether class sums never change, so that the last class follows from the others
    """

    form: str = "float64"
    conserved: bool = False

    def shown(self, values: Array, before: Array) -> Array:
        """Return x̂ from x and x̂ of the exchange before: two [..., C, K] -> [..., C, K]."""
        if self.form == "float64":
            return values
        xp = array_namespace(values)
        if self.form == "float32":
            return xp.astype(xp.astype(values, xp.float32), values.dtype)
        change = values - before
        coded = change[..., :-1, :] if self.conserved else change
        scale = self._scale(coded, values)
        near = (
            xp.round(coded / scale * CLEAR) / CLEAR
        )  # a half, however its last bits were rounded, is a half
        largest = LARGEST[self.form]
        steps = xp.clip(xp.round(near), -largest, largest)
        if self.conserved:
            steps = xp.concat([steps, -xp.sum(steps, axis=-2, keepdims=True)], axis=-2)
        return before + scale * steps

    def first(self, start: Array) -> Array:
        """Return x̂ before the first exchange, from S⁰ [..., C, K], which all know: a multiple of the smallest s."""
        if self.form not in LARGEST:
            return start
        xp = array_namespace(start)
        smallest = xp.ldexp(xp.ones_like(start[..., :1, :]), self._finest(start))
        return xp.round(start / smallest) * smallest

    def _scale(self, change: Array, values: Array) -> Array:
        """Return s, the smallest power of two per column that fits all its changes: [..., C, K] -> [..., 1, K]."""
        xp = array_namespace(values)
        largest = xp.max(xp.abs(change), axis=-2, keepdims=True)
        exponent = xp.frexp(largest * ((1.0 + 1.0 / CLEAR) / LARGEST[self.form]))[1]
        return xp.ldexp(xp.ones_like(values[..., :1, :]), xp.maximum(exponent, self._finest(values)))

    @staticmethod
    def _finest(values: Array) -> Array:
        """Return the exponent of the smallest s beside values: [..., C, K] -> [..., 1, K] of integers."""
        xp = array_namespace(values)
        bits = 23 if values.dtype == xp.float32 else 52
        return xp.frexp(xp.max(xp.abs(values), axis=-2, keepdims=True))[1] - (bits - SPARE_BITS)

    def size(self, shape: tuple[int, ...]) -> int:
        """Return the bytes of a message of a shape [..., C, K] to a neighbour that has the one before."""
        *matrices, classes, columns = shape
        count = math.prod(matrices) * columns
        if self.form in LARGEST:  # and a byte for the exponent of each column
            return count * (BYTES[self.form] * (classes - self.conserved) + 1)
        return count * classes * BYTES[self.form]

    @property
    def of_corrections(self) -> Rounding:
        """How corrections of links are rounded, which go beside messages after a loss: see `corrections`."""
        return self if self.form == "float64" else replace(self, form="int16")


UNROUNDED = Rounding()


class RoundedState(NamedTuple):
    """The state of `Rounded`."""

    inner: Any  # of the strategy
    values: Array  # [..., C, K] x
    shown: Array  # [..., C, K] x̂, the message of the coming exchange
    exchanges_done: Array  # [] of the current round of learning


@dataclass(frozen=True)
class Rounded:
    """A strategy with several exchanges of rounded messages in each of its rounds."""

    inner: Any
    rounding: Rounding
    exchanges: int = 1

    @property
    def name(self) -> str:
        return str(self.inner.name)

    @property
    def mixing(self) -> str:
        return str(self.inner.mixing)

    @property
    def of_weights(self) -> bool:
        return bool(self.inner.of_weights)

    @property
    def takes_old(self) -> bool:
        return bool(self.inner.takes_old)

    @property
    def boost(self) -> float:
        """The factor b of residuals."""
        return float(getattr(self.inner, "boost", 1.0))

    @property
    def declaration(self) -> Declaration:
        """What the strategy declares; a rounded message is no mix any more, and no model to be judged."""
        return replace(declared(self.inner), convex=False, judged=False)

    def begin(self, start: Array, residual: Residual) -> RoundedState:
        xp, inner = array_namespace(start), self.inner.begin(start, residual)
        values = self.inner.message(inner)
        return RoundedState(
            inner, values, self.rounding.shown(values, first_base(self, start)), xp.zeros_like(start[0, 0, 0])
        )

    def message(self, state: RoundedState) -> Array:
        return state.shown

    def step(
        self, state: RoundedState, mixed: Array, residual: Residual, share: Array | None = None
    ) -> RoundedState:
        """Return the state after an exchange; after the last of a round, that of the strategy's step.

        share  [...] as in `Exact.step`
        """
        xp, inner, values = array_namespace(mixed), state.inner, state.values + (mixed - state.shown)
        done = xp.asarray(state.exchanges_done + 1.0)
        if done >= self.exchanges:
            further = () if share is None else (share,)
            inner, done = self.inner.step(inner, values, residual, *further), xp.zeros_like(done)
            values = self.inner.message(inner)
        return RoundedState(inner, values, self.rounding.shown(values, state.shown), done)

    def uncorrected(self, state: RoundedState, late: Array) -> RoundedState:
        """Return the state before an exchange whose mix has [..., C, K] that is no correction: see `Exact`."""
        return state._replace(inner=self.inner.uncorrected(state.inner, late))

    def read(self, state: RoundedState) -> Array:
        return self.inner.read(state.inner)


def with_few_bytes(strategy: Any, settings: LearningSettings, completed: bool) -> Any:
    """Return a strategy whose messages are rounded and exchanged as the settings say; itself where they say nothing.

    completed  whether values are missing that the family completes, so that class sums move
    """
    exchanges = exchange_count(settings.messages, settings.exchanges)
    declaration = declared(strategy)
    rounding = Rounding(settings.messages, declaration.conserves and not completed)
    if (settings.messages == "float64" and exchanges == 1) or getattr(strategy, "mixing", None) == "none":
        return strategy
    if declaration.over_tree:
        return replace(strategy, rounding=rounding, exchanges=exchanges)
    return Rounded(strategy, rounding, exchanges)


def first_base(strategy: Any, start: Array) -> Array:
    """Return x̂ of a strategy before its first exchange, from S⁰: [..., C, K] -> [..., C, K]."""
    xp, rounding = array_namespace(start), getattr(strategy, "rounding", UNROUNDED)
    return rounding.first(start if declared(strategy).contains_start else xp.zeros_like(start))


def exchange_count(messages: str, exchanges: int | None) -> int:
    """Return how many exchanges of messages a round has, by the settings."""
    return FORMS[messages] if exchanges is None else exchanges


def exchanges_of(strategy: Any) -> int:
    """Return how many exchanges of messages a round of a strategy has."""
    return int(getattr(strategy, "exchanges", 1))


def rounded_corrections(strategy: Any, values: Array) -> Array:
    """Return corrections of links as they are sent: [..., C, K] -> [..., C, K]."""
    xp, rounding = array_namespace(values), getattr(strategy, "rounding", UNROUNDED)
    return rounding.of_corrections.shown(values, xp.zeros_like(values))


def correction_bytes(strategy: Any, message: Array) -> float:
    """Return the bytes of a correction beside a message [..., C, K]."""
    rounding = getattr(strategy, "rounding", UNROUNDED).of_corrections
    return float(message.nbytes if rounding.form == "float64" else rounding.size(message.shape))


def is_last_exchange(strategy: Any, state: Any) -> bool:
    """Return whether the coming exchange is the last of its round, from the state of a strategy that mixes."""
    return exchanges_of(strategy) == 1 or float(state.exchanges_done) == strategy.exchanges - 1


# --- bytes of messages, by which a simulation counts what peers of a network would send


def message_bytes(strategy: Any, message: Array) -> float:
    """Return the bytes of a message [..., C, K] to a neighbour that has the one before."""
    rounding = getattr(strategy, "rounding", None)
    if rounding is None or rounding.form == "float64":
        return float(message.nbytes)
    return float(rounding.size(message.shape))


def missed_in_a_row(round_index: int, arrived: Callable[[int], np.ndarray], most: int) -> np.ndarray:
    """Return how many messages before that of a round each receiver missed, one after the other: [E], up to `most`.

    arrived  returns which messages of an earlier round arrived: [E]; before the first all know the start
    """
    missed, silent = np.zeros(1, dtype=np.int64), np.ones(1, dtype=bool)
    for earlier in range(round_index - 1, max(0, round_index - 1 - most), -1):
        silent = silent & ~arrived(earlier)
        missed = missed + silent
        if not silent.any():
            break
    return missed


def link_bytes(strategy: Any, message: Array, missed: np.ndarray) -> np.ndarray:
    """Return the bytes of a message [..., C, K] on links whose receivers missed so many before it: [E] -> [E].

    A difference from an older message takes no more than all differences since then, or than the message itself.
    """
    return np.minimum((1 + missed) * message_bytes(strategy, message), float(message.nbytes))
