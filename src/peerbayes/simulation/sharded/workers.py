"""Engines that run shards: as plain objects of this process, or as Ray actors on a cluster (extra `cluster`).

Ray is for trusted clusters only: whoever reaches its ports can run code. Never between data owners.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from peerbayes.errors import ConfigurationError, PeerbayesError
from peerbayes.model.devices import ONE_THREAD
from peerbayes.simulation.sharded.shard import Shard

RETRIES = 2  # of a task whose worker died
ALIVE_TIMEOUT = 30.0  # seconds for a shard to answer that it is alive, after an error


class ShardLost(PeerbayesError):
    """The process of a shard died, and its peers' statistics with it."""


class Engine(Protocol):
    """Runs shards. The result of a call may be pending; `get` waits for it."""

    def start(self, *arguments: Any) -> None:
        """Add a shard."""

    def call(self, number: int, verb: str, *arguments: Any) -> Any: ...
    def call_many(self, number: int, verb: str, count: int, *arguments: Any) -> list[Any]:
        """Make a call with `count` results, each of which can go to another shard without being fetched."""

    def get(self, results: list[Any]) -> list[Any]: ...


class InProcess:
    """Shards as plain objects of this process: for tests, and for debugging `rows_of`."""

    def __init__(self) -> None:
        self._shards: list[Shard] = []

    def start(self, *arguments: Any) -> None:
        self._shards.append(Shard(*arguments))

    def call(self, number: int, verb: str, *arguments: Any) -> Any:
        return getattr(self._shards[number], verb)(*arguments)

    def call_many(self, number: int, verb: str, count: int, *arguments: Any) -> list[Any]:
        return self.call(number, verb, *arguments)

    def get(self, results: list[Any]) -> list[Any]:
        return results


class RayActors:
    """Shards as Ray actors, a processor each. One that dies ends the run: its peers' state is lost."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._shards: list[Any] = []
        self._actor = ray.remote(num_cpus=1, max_restarts=0, runtime_env={"env_vars": ONE_THREAD})(Shard)

    def start(self, *arguments: Any) -> None:
        self._shards.append(self._actor.remote(*arguments))

    def call(self, number: int, verb: str, *arguments: Any) -> Any:
        return getattr(self._shards[number], verb).remote(*arguments)

    def call_many(self, number: int, verb: str, count: int, *arguments: Any) -> list[Any]:
        references = getattr(self._shards[number], verb).options(num_returns=count).remote(*arguments)
        return [references] if count == 1 else references

    def get(self, results: list[Any]) -> list[Any]:
        try:
            return self._ray.get(results)
        except self._ray.exceptions.RayError as error:
            dead = [number for number in range(len(self._shards)) if not self._alive(number)]
            if not dead:
                raise
            raise ShardLost(
                f"the process of shard {', '.join(map(str, dead))} of {len(self._shards)} (counted from 0) died, and "
                "what its peers had learnt is lost; start the run again: the same call gives the same numbers. If it "
                "was killed for memory, use more shards on more machines"
            ) from error

    def stop(self) -> None:
        """End the actors, to free their memory on a cluster that keeps running."""
        for shard in self._shards:
            self._ray.kill(shard)

    def _alive(self, number: int) -> bool:
        try:
            self._ray.get(self._shards[number].ready.remote(), timeout=ALIVE_TIMEOUT)
        except self._ray.exceptions.GetTimeoutError:
            return True  # busy
        except self._ray.exceptions.RayActorError:
            return False
        return True


@contextmanager
def cluster(workers: int | None = None, address: str | None = None) -> Iterator[Any]:
    """Connect to Ray and yield the module: started here on `workers` processors, or joined at `address`.

    An existing connection of this process is used, and left open. Ray that was started here is ended again, opens no
    dashboard and sends no usage statistics. Trusted clusters only.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigurationError("Ray is not installed: pip install 'peerbayes[cluster]'") from error
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {}
    if not address:  # else Ray would restart a task that was killed for memory again and again
        options = {
            "num_cpus": workers,
            "include_dashboard": False,
            "_system_config": {"task_oom_retries": RETRIES},
        }
    previous = os.environ.get("RAY_USAGE_STATS_ENABLED")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # read by the processes that Ray starts
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray's advice about its coming versions
            ray.init(
                address=address or "local", log_to_driver=False, logging_level=logging.ERROR,
                runtime_env={"env_vars": ONE_THREAD}, **options,
            )  # fmt: skip
    finally:
        if previous is None:
            del os.environ["RAY_USAGE_STATS_ENABLED"]
        else:
            os.environ["RAY_USAGE_STATS_ENABLED"] = previous
    try:
        yield ray
    finally:
        ray.shutdown()
