"""Cells computed by Ray, on this machine or a cluster of them (extra `cluster`).

Ray is for trusted clusters only: whoever reaches its ports can run code. Never between data owners.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from peerbayes.errors import ConfigurationError, PeerbayesError
from peerbayes.machine import ONE_THREAD
from peerbayes.shards.engines import RETRIES, cluster

Compute = Callable[[dict[str, Any]], dict[str, Any]]

AHEAD = 2  # cells in flight per worker: an interrupted sweep loses little
DEATHS = RETRIES + 1  # of workers that computed the same cell, before the sweep is aborted


class CellFailed(PeerbayesError):
    """A cell's computation raised an error, the cause of this one; `specification` says which cell."""

    def __init__(self, message: str, specification: dict[str, Any]) -> None:
        super().__init__(message)
        self.specification = specification


@dataclass(frozen=True)
class RayEngine:
    """Tasks of a Ray cluster, each on one thread. The cells of a worker that dies are computed again.

    workers  tasks at a time; None: as many as there are processors
    address  of a cluster to join ("auto": the one this machine is in); None starts Ray on this machine, and ends it
    """

    workers: int | None = None
    address: str | None = None
    name = "ray"

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
                    yield index, _result(ray, done[0], specifications[index])
            finally:
                for pending in in_flight:
                    ray.cancel(pending, force=True)


def _result(ray: Any, reference: Any, specification: dict[str, Any]) -> dict[str, Any]:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:  # raised by compute itself
        raise CellFailed(f"{specification} failed: {error.cause!r}", specification) from error.cause
    except ray.exceptions.RayError as error:
        raise ConfigurationError(
            f"{DEATHS} workers died while computing {specification}; is there enough memory? Try fewer workers"
        ) from error
