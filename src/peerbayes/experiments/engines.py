"""Where cells are computed: processes of this machine, or a Ray cluster."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from peerbayes.errors import ConfigurationError, PeerbayesError
from peerbayes.model.devices import ONE_THREAD, processors
from peerbayes.simulation.sharded.workers import RETRIES, cluster, connected

# --- cells computed by Ray, on this machine or a cluster of them (extra `cluster`)
# Ray is for trusted clusters only: whoever reaches its ports can run code. Never between data owners.

Compute = Callable[[dict[str, Any]], dict[str, Any]]

AHEAD = 2  # cells in flight per worker: an interrupted sweep loses little
DIED = "its workers died while they computed it; is there enough memory? Try fewer workers"
DEATHS = RETRIES + 1  # of workers that computed the same cell, before the sweep is aborted


class CellFailed(PeerbayesError):
    """A cell's computation raised an error, the cause of this one; `specification` says which cell."""

    def __init__(self, message: str, specification: dict[str, Any]) -> None:
        super().__init__(message)
        self.specification = specification


class CellsLost(ConfigurationError):
    """Workers died again and again while they computed one of these cells; `lost` are their numbers."""

    def __init__(self, message: str, lost: Sequence[int]) -> None:
        super().__init__(message)
        self.lost = tuple(lost)


@dataclass(frozen=True)
class RayEngine:
    """Tasks of a Ray cluster, each on one thread. The cells of a worker that dies are computed again.

    workers  tasks at a time; None: as many as there are processors
    address  of a cluster to join ("auto": the one this machine is in); None starts Ray on this machine, and ends it
    """

    workers: int | None = None
    address: str | None = None
    name = "ray"

    @property
    def joins(self) -> bool:
        """Whether cells are computed by a cluster that others started, maybe on other machines."""
        return self.address is not None or connected()

    def run(
        self, compute: Compute, specifications: Sequence[dict[str, Any]]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (index, result) as results come in, in any order."""
        with cluster(self.workers, self.address) as ray:
            task = ray.remote(
                num_cpus=1,
                max_retries=RETRIES,
                retry_exceptions=False,
                runtime_env={"env_vars": ONE_THREAD},
            )(compute)
            most = AHEAD * (self.workers or int(ray.cluster_resources().get("CPU", 1)))
            waiting = deque(range(len(specifications)))
            in_flight: dict[Any, int] = {}
            try:
                while waiting or in_flight:
                    while waiting and len(in_flight) < most:
                        index = waiting.popleft()
                        in_flight[task.remote(specifications[index])] = index
                    done, _ = ray.wait(list(in_flight), num_returns=1)
                    index = in_flight.pop(done[0])
                    yield index, _result(ray, done[0], specifications[index], index)
            finally:
                for pending in in_flight:
                    ray.cancel(pending, force=True)


def _result(ray: Any, reference: Any, specification: dict[str, Any], index: int) -> dict[str, Any]:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:  # raised by compute itself
        raise CellFailed(f"{specification} failed: {error.cause!r}", specification) from error.cause
    except ray.exceptions.RayError as error:
        raise CellsLost(
            f"{DEATHS} workers died while computing {specification}; is there enough memory? Try fewer workers",
            (index,),
        ) from error


# --- engines that compute cells: in this process, in a pool of processes, or by Ray on several machines
# An engine's `run(compute, specifications)` yields (index, result) as results come in, in any order. The numbers are
# the same on all of them: a cell is a function of its specification alone.

ENGINES = ("local", "ray")


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
                    raise CellsLost(
                        f"a worker died {deaths} times while computing one of {[specifications[i] for i in lost]}; "
                        "is there enough memory? Try fewer workers",
                        lost,
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
            with no_main():
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
        with no_main():
            for _ in range(workers):
                pool.submit(os.getpid)  # starts them now
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
    return pool


@contextmanager
def no_main() -> Iterator[None]:
    """Hide the program's main module from workers that start: they would run it again, and it may have no guard."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _watch(parent: int) -> None:
    """End this worker when its parent process ends, and leave interrupts to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def ended() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=ended, daemon=True).start()


def enduring(
    engine: Engine, compute: Compute, specifications: Sequence[dict[str, Any]]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (index, result) like an engine; a cell that kills its workers, also alone, has a result that says so."""
    waiting, alone = list(range(len(specifications))), deque[int]()
    while waiting or alone:
        batch = [alone.popleft()] if alone else waiting.copy()
        waiting = [index for index in waiting if index not in set(batch)]
        unfinished = set(batch)
        try:
            for number, result in engine.run(compute, [specifications[index] for index in batch]):
                unfinished.discard(batch[number])
                yield batch[number], result
        except CellsLost as error:
            suspects = [batch[number] for number in error.lost]
            if len(batch) == 1 or len(suspects) == 1:
                unfinished.discard(suspects[0])
                yield suspects[0], {"failed": DIED}
            else:
                alone.extend(suspects)
            waiting = sorted({*waiting, *unfinished} - set(alone))


def engine_of(name: str, workers: int | None, address: str | None = None) -> Engine:
    """Return the engine of that name; `address`: of a Ray cluster to join."""
    if address is not None and name != "ray":
        raise ConfigurationError(f"the address {address} is for the engine ray; the engine is {name!r}")
    if workers is not None and workers < 1:
        raise ConfigurationError(f"workers is {workers}; expected 1 or more")
    if name == "local":
        return LocalEngine(workers)
    if name == "ray":
        return RayEngine(workers, address)
    raise ConfigurationError(f"the engine is {name!r}; expected one of {', '.join(ENGINES)}")
