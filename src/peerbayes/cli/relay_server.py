"""`peerbayes relay`: forwards bytes that it cannot read, for peers behind firewalls."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import Annotated

from peerbayes.cli import option
from peerbayes.errors import ConfigurationError, parts_needed

# Exit codes: 0 stopped by SIGTERM, 2 the address cannot be listened on, or a file that is not as expected, 130 stopped
# by Ctrl-C.


@parts_needed()
def relay(
    listen: Annotated[
        str, option("The address where it listens, host:port; 443 is what most firewalls let out.")
    ] = "0.0.0.0:443",
    only: Annotated[
        Path | None,
        option("A file with the digests of the keys that may wait here, one a line; default: any key."),
    ] = None,
    waiting: Annotated[int, option("Peers that may wait, at most.", min=1)] = 1000,
    pairs: Annotated[int, option("Connections that are joined at once, at most.", min=1)] = 4000,
    of_one_address: Annotated[int, option("Connections of one address, at most.", min=1)] = 200,
    quiet: Annotated[bool, option("Log warnings only, not who comes and goes.", "--quiet")] = False,
) -> None:
    """Forward bytes between members that cannot reach each other, until it is stopped.

    It needs no key and belongs to no network: what passes is encrypted from member to member, and the relay cannot read
    it. It learns which keys talk when, from which addresses, and how much. A peer waits here with the address
    relay://host:port. Exit codes: 0 stopped by SIGTERM; 2 it cannot listen there; 130 stopped by Ctrl-C.
    """
    from peerbayes.data.files import text_of
    from peerbayes.peer.blind_relay import DIGEST, Limits, Relay
    from peerbayes.peer.protocol import connections
    from peerbayes.peer.service import until_stopped

    keys = frozenset[str]()
    if only is not None:
        lines = [line.partition("#")[0].strip() for line in text_of(only).splitlines()]
        keys = frozenset(line for line in lines if line)
        for key in sorted(keys):
            if not DIGEST.fullmatch(key):
                raise ConfigurationError(
                    f"{only}: {key!r:.80}; expected digests of keys, 64 hexadecimal digits each, as `peerbayes network "
                    "inspect --format json` shows them under `key`"
                )
        if not keys:
            raise ConfigurationError(f"{only} names no keys; expected a digest a line, or no --only")
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 2**16:
        raise ConfigurationError(f"--listen is {listen!r:.80}; expected host:port, such as 0.0.0.0:443")
    logging.basicConfig(level=logging.WARNING if quiet else logging.INFO, format="%(asctime)s %(message)s")
    connections.raise_limit()

    async def work() -> None:
        running = Relay(Limits(waiting, pairs, of_one_address), keys)
        await running.start(listen)
        logging.getLogger("peerbayes.relay").info(
            f"listening on {listen}; {'any key' if not keys else f'{len(keys)} keys'} may wait here"
        )
        try:
            await asyncio.Event().wait()
        finally:
            await running.close()

    stopped, _ = asyncio.run(until_stopped(work()))
    if stopped == signal.SIGINT:
        sys.exit(130)
