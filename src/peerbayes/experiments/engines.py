"""Engines that compute cells: in this process, in a pool of processes, or (extra `cluster`) by Ray on several machines.

An engine's `run(compute, specifications)` yields (index, result) as results come in, in any order. The numbers are the
same on all of them: a cell is a function of its specification alone.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Protocol

from peerbayes.errors import ConfigurationError
from peerbayes.machine import ONE_THREAD, processors

Compute = Callable[[dict[str, Any]], dict[str, Any]]

ENGINES = ("local", "ray")
AHEAD = 2  # cells queued for each worker
DEATHS = 3  # of workers with the same cells in flight, before the sweep is aborted


class Engine(Protocol):
    """Computes cells."""

    def run(
        self, compute: Compute, specifications: Sequence[dict[str, Any]]
    ) -> Iterator[tuple[int, dict[str, Any]]]: ...


@dataclass(frozen=True)
class LocalEngine:
    """A pool of processes, each on one thread. If one dies, its cells are computed again."""

    workers: int | None = None
    name = "local"

    def run(
        self, compute: Compute, specifications: Sequence[dict[str, Any]]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        workers = min(self.workers or processors(), max(1, len(specifications)))
        waiting, deaths = deque(range(len(specifications))), 0
        while waiting:
            in_flight: dict[Future[dict[str, Any]], int] = {}
            try:
                with _pool(workers) as pool:
                    for index, result in _computed(
                        pool, AHEAD * workers, compute, specifications, waiting, in_flight
                    ):
                        yield index, result
                        deaths = 0
            except BrokenProcessPool as error:
                deaths += 1
                lost = sorted(in_flight.values())
                if deaths >= DEATHS:
                    raise ConfigurationError(
                        f"a worker died {deaths} times while computing one of {[specifications[i] for i in lost]}; "
                        "is there enough memory? Try fewer workers"
                    ) from error
                waiting.extendleft(reversed(lost))


def _computed(
    pool: ProcessPoolExecutor,
    most: int,
    compute: Compute,
    specifications: Sequence[dict[str, Any]],
    waiting: deque[int],
    in_flight: dict[Future[dict[str, Any]], int],
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield results as they come in; `in_flight` are the cells handed out and not yet finished."""
    while waiting or in_flight:
        while waiting and len(in_flight) < most:
            in_flight[pool.submit(compute, specifications[waiting[0]])] = waiting[0]
            waiting.popleft()  # only now: `submit` raises where a worker's death has broken the pool
        done, _ = wait(in_flight, return_when=FIRST_COMPLETED)
        for future in done:
            result = future.result()
            yield in_flight.pop(future), result


def _pool(workers: int) -> ProcessPoolExecutor:
    """Return a pool of spawned processes that use one thread each and end when this process does."""
    context = multiprocessing.get_context("spawn")
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ.update(ONE_THREAD)  # read by a worker when it starts
    try:
        pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_watch, initargs=(os.getpid(),))
        for _ in range(workers):
            pool.submit(os.getpid)  # starts them now
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
    return pool


def _watch(parent: int) -> None:
    """End this worker when its parent process ends, and leave interrupts to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def ended() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=ended, daemon=True).start()


def engine_of(name: str, workers: int | None, address: str | None = None) -> Engine:
    """Return the engine of that name; `address`: of a Ray cluster to join."""
    if address is not None and name != "ray":
        raise ConfigurationError(f"the address {address} is for the engine ray; the engine is {name!r}")
    if workers is not None and workers < 1:
        raise ConfigurationError(f"workers is {workers}; expected 1 or more")
    if name == "local":
        return LocalEngine(workers)
    if name == "ray":
        from peerbayes.experiments.ray_engine import RayEngine

        return RayEngine(workers, address)
    raise ConfigurationError(f"the engine is {name!r}; expected one of {', '.join(ENGINES)}")
