"""Where shards are: plain objects of this process, or Ray actors on any machine of a cluster (extra `cluster`).

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
from peerbayes.machine import ONE_THREAD
from peerbayes.shards.shard import Shard

RETRIES = 2  # of a task whose worker died
PATIENCE = 30.0  # seconds that a shard is given to say it is alive, once something went wrong


class ShardLost(PeerbayesError):
    """The process of a shard died, and its peers' statistics with it."""


class Engine(Protocol):
    """Shards somewhere. What a call gives may still be under way; `get` waits for it."""

    def start(self, *given: Any) -> None:
        """One more shard."""

    def call(self, number: int, verb: str, *given: Any) -> Any: ...
    def parts(self, number: int, verb: str, count: int, *given: Any) -> list[Any]:
        """A call that gives so many things, each of which can be passed on to another shard without being fetched."""

    def get(self, results: list[Any]) -> list[Any]: ...


class Here:
    """Shards as plain objects of this process: the twin for tests, and for finding mistakes in `rows_of`."""

    def __init__(self) -> None:
        self._shards: list[Shard] = []

    def start(self, *given: Any) -> None:
        self._shards.append(Shard(*given))

    def call(self, number: int, verb: str, *given: Any) -> Any:
        return getattr(self._shards[number], verb)(*given)

    def parts(self, number: int, verb: str, count: int, *given: Any) -> list[Any]:
        return self.call(number, verb, *given)

    def get(self, results: list[Any]) -> list[Any]:
        return results


class OverRay:
    """Shards as Ray actors, a processor each. One that dies ends the run: its peers' state is gone."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._shards: list[Any] = []
        self._actor = ray.remote(num_cpus=1, max_restarts=0, runtime_env={"env_vars": ONE_THREAD})(Shard)

    def start(self, *given: Any) -> None:
        self._shards.append(self._actor.remote(*given))

    def call(self, number: int, verb: str, *given: Any) -> Any:
        return getattr(self._shards[number], verb).remote(*given)

    def parts(self, number: int, verb: str, count: int, *given: Any) -> list[Any]:
        given_back = getattr(self._shards[number], verb).options(num_returns=count).remote(*given)
        return [given_back] if count == 1 else given_back

    def get(self, results: list[Any]) -> list[Any]:
        try:
            return self._ray.get(results)
        except self._ray.exceptions.RayError as error:
            dead = [number for number in range(len(self._shards)) if not self._alive(number)]
            if not dead:
                raise
            raise ShardLost(
                f"the process of shard {', '.join(map(str, dead))} of {len(self._shards)} (counted from 0) died, and "
                "what its peers had learnt is gone; start the run again: the same call gives the same numbers. If it "
                "was killed for memory, use more shards on more machines"
            ) from error

    def stop(self) -> None:
        """End the actors, so that a cluster that goes on has its memory back."""
        for shard in self._shards:
            self._ray.kill(shard)

    def _alive(self, number: int) -> bool:
        try:
            self._ray.get(self._shards[number].ready.remote(), timeout=PATIENCE)
        except self._ray.exceptions.GetTimeoutError:
            return True  # busy
        except self._ray.exceptions.RayActorError:
            return False
        return True


@contextmanager
def cluster(workers: int | None = None, address: str | None = None) -> Iterator[Any]:
    """The module `ray`, connected: started here on `workers` processors and ended again, or joined at `address`.

    Where this process is connected already, that is used and left as it is. Started here, Ray opens no dashboard and
    sends no usage statistics. Trusted clusters only.
    """
    try:
        import ray
    except ImportError as error:
        raise ConfigurationError("Ray is not installed: pip install 'peerbayes[cluster]'") from error
    if ray.is_initialized():
        yield ray
        return
    own: dict[str, Any] = {}
    if not address:  # Ray would start a task that was killed for memory again and again
        own = {
            "num_cpus": workers,
            "include_dashboard": False,
            "_system_config": {"task_oom_retries": RETRIES},
        }
    before = os.environ.get("RAY_USAGE_STATS_ENABLED")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # read by the processes that Ray starts
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray's advice about its coming versions
            ray.init(
                address=address or "local", log_to_driver=False, logging_level=logging.ERROR,
                runtime_env={"env_vars": ONE_THREAD}, **own,
            )  # fmt: skip
    finally:
        if before is None:
            del os.environ["RAY_USAGE_STATS_ENABLED"]
        else:
            os.environ["RAY_USAGE_STATS_ENABLED"] = before
    try:
        yield ray
    finally:
        ray.shutdown()
