"""What a run reports while it goes on, and how: its start, the figures of each evaluated round, and its end.

Callbacks see a run and change nothing of it. Whoever was called at its start is called once more: with the finished
run, or with what ended it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from peerbayes.data.arguments import refusal
from peerbayes.data.schema import Schema
from peerbayes.errors import CallbackFailed
from peerbayes.simulation.records import COLUMNS, counted

EVENTS = ("begin", "evaluated", "end", "failed")
CALLBACKS = (
    "a list of callbacks, each a function of a round and its figures, or an object with one or more of the methods "
    + ", ".join(EVENTS)
)


@dataclass(frozen=True)
class RunInfo:
    """What a run is before its first round."""

    configuration: dict[str, Any]
    """The settings of the run, as JSON can hold them."""
    made: dict[str, str]
    """When the run began and with which versions; why a strategy and a family were chosen, where they were."""
    schema: Schema
    """Columns and classes."""
    sizes: np.ndarray
    """[N] rows of each peer."""

    def copy(self) -> RunInfo:
        """Return a copy: what a callback does to it changes nothing elsewhere."""
        return RunInfo(deepcopy(self.configuration), dict(self.made), self.schema, self.sizes.copy())


class Callback:
    """What is called while a run goes on; nothing that it returns is used.

    Every method may be left out. A class need not inherit from this one: any object with one of these methods is a
    callback, and so is a function, which is called as `evaluated`.
    """

    def begin(self, info: RunInfo) -> Any:
        """Take what a run is, its `info`, before its first round."""

    def evaluated(self, round_index: int, figures: dict[str, float]) -> Any:
        """Take the number of an evaluated round, `round_index`, and its `figures`: see `figures_of`.

        A run that resumes from a checkpoint reports the rounds before it first.
        """

    def end(self, run: Any) -> Any:
        """Take the finished `run`: a `Run`, or a `ShardedRun`."""

    def failed(self, error: BaseException) -> Any:
        """Take the `error` that ended a run after its start, also a KeyboardInterrupt."""


def figures_of(records: np.ndarray, seconds: float = math.nan) -> dict[str, float]:
    """Return the figures of a round from its records [N, 8]: of each column of the history, and `seconds`.

    NAME is the mean over peers and NAME_std their standard deviation, over the same peers as in `Run.history`. Seconds
    are those that rounds have taken since the call, without evaluation; NaN for rounds before a resumed call.
    """
    peers = counted(records)
    figures: dict[str, float] = {}
    for index, name in enumerate(COLUMNS):
        if name not in ("round", "peer"):
            figures |= {name: float(peers[:, index].mean()), f"{name}_std": float(peers[:, index].std())}
    return figures | {"seconds": seconds}


def checked_callbacks(name: str, value: Any) -> tuple[Any, ...]:
    """Return callbacks as a tuple, or refuse them by `name`."""
    if not isinstance(value, list | tuple):
        raise refusal(name, value, CALLBACKS, TypeError)
    for callback in value:
        if isinstance(callback, type):
            raise refusal(name, value, f"{CALLBACKS}; call the class {callback.__name__}", TypeError)
        if not (callable(callback) or any(_method(callback, event) for event in EVENTS)):
            raise refusal(name, value, CALLBACKS, TypeError)
    return tuple(value)


class Callbacks:
    """The callbacks of one run, to be used as a context: what ends the run inside is passed to `failed`."""

    def __init__(self, callbacks: Iterable[Any]) -> None:
        self._callbacks = tuple(callbacks)
        self._open: list[Any] = []

    def __bool__(self) -> bool:
        return bool(self._callbacks)

    def begin(self, info: RunInfo) -> None:
        """Report the start of the run."""
        for callback in self._callbacks:
            self._open.append(callback)
            _call(callback, "begin", info.copy())

    def evaluated(self, records: np.ndarray, seconds: float = math.nan) -> None:
        """Report an evaluated round by its records [N, 8]."""
        round_index, figures = int(records[0, 0]), figures_of(records, seconds)
        for callback in self._callbacks:
            _call(callback, "evaluated", round_index, dict(figures))

    def end(self, run: Any) -> None:
        """Report the finished run to all; an error of one of them is raised afterwards, with the run."""
        problem: CallbackFailed | None = None
        while self._open:
            try:
                _call(self._open.pop(0), "end", run)
            except CallbackFailed as error:
                problem = problem or error
        if problem is not None:
            problem.run = run
            problem.add_note("The run itself is finished: it is the attribute `run` of this error.")
            raise problem

    def __enter__(self) -> Callbacks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Report what ended the run; an error meanwhile becomes a note of that one."""
        while self._open and error is not None:
            try:
                _call(self._open.pop(0), "failed", error)
            except CallbackFailed as further:
                error.add_note(str(further))


def _method(callback: Any, event: str) -> Any:
    """Return the method of an event, or None."""
    method = getattr(callback, event, None)
    return method if callable(method) else None


def _call(callback: Any, event: str, *arguments: Any) -> None:
    """Call a callback for an event; whatever is wrong with it names it."""
    function = _method(callback, event)
    if function is None and event == "evaluated" and not any(_method(callback, name) for name in EVENTS):
        function = callback
    if function is None:
        return
    try:
        function(*arguments)
    except Exception as error:
        name = type(callback).__name__
        with suppress(AttributeError):
            name = callback.__name__  # of a function
        when = f"{event}, round {arguments[0]}" if event == "evaluated" else event
        raise CallbackFailed(
            f"callback {name} ({when}) failed with {type(error).__name__}: {error}"
        ) from error
