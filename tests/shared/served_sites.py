"""Sites in this process, over sockets: all runs of some folders, until something is true of them."""

import asyncio
import contextlib

from peerbayes.peer.runs import Runs
from peerbayes.peer.site import Site, serve_all
from peerbayes.peer.state.disk import lock
from shared.commands import HANG


def served(homes, until):
    """Serve folders in one process until something is true of them; then all stop, as by SIGTERM."""

    async def serve():
        with contextlib.ExitStack() as held:
            sites = [Site(home, 0.0, held.enter_context(lock(home))) for home in homes]
            await at_work(asyncio.ensure_future(serve_all(sites)))

    async def at_work(work):
        try:
            async with asyncio.timeout(HANG):
                while not until():
                    assert not work.done(), work.result()
                    await asyncio.sleep(0.02)
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    asyncio.run(serve())


def outcome(home, number=1):
    """How a run ended in a folder; None: it has not."""
    return Runs(home.folder).outcome(number)


def done(homes, number=1):
    """Serve folders until a run has ended at all of them, and well."""
    served(homes, lambda: all(outcome(home, number) for home in homes))
    assert [outcome(home, number).state for home in homes] == ["done"] * len(homes), [
        outcome(home, number) for home in homes
    ]


def agreed_run(homes, number=2, **proposed):
    """Have the first of these folders propose a run, and all others approve it."""
    first, *others = (Runs(home.folder) for home in homes)
    first.propose(**proposed)
    for runs in others:
        for path in first.shared().values():
            runs.add(path.read_bytes())
        runs.approve(number)
