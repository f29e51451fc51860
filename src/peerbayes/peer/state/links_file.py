"""links.json: how the running process of a folder is linked to each neighbour, for whoever looks from outside.

Only the process that serves knows its links: `check` and `status` are others. The file says what was so a second ago;
it counts only while a process runs, and whoever takes the folder's lock removes what the one before has left.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Collection, Mapping

from peerbayes.data import files
from peerbayes.peer.state.disk import running
from peerbayes.peer.state.folder import Home

NONE, REVERSED = "none", "reversed"
KINDS = ("direct", REVERSED, "relayed", NONE)
"""This peer opened the link; the neighbour did; it goes by way of a relay; there is none now."""
EVERY = 1.0  # seconds between two looks at the links


def links_of(home: Home) -> dict[str, str] | None:
    """Return the kind of each neighbour's link; None: no process runs, or it does not say."""
    if not running(home):
        return None
    try:
        links = json.loads(home.links_path.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(links, dict) or not all(
        isinstance(kind, str) and kind in KINDS for kind in links.values()
    ):
        return None
    return links


async def publish_links(
    home: Home, neighbours: Callable[[], Collection[str]], kind_of: Callable[[str], str]
) -> None:
    """Write the kinds of the links whenever they have changed; a full disk is no reason to stop."""
    written: Mapping[str, str] | None = None
    while True:
        links = {name: kind_of(name) for name in neighbours()}
        if links != written:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(files.write, home.links_path, json.dumps(links).encode())
                written = links
        await asyncio.sleep(EVERY)
