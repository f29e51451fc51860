"""Leaving a run: tell the neighbours, so that they do not wait."""

from __future__ import annotations

import asyncio

from peerbayes.peers import wire
from peerbayes.peers.errors import PeerError
from peerbayes.peers.home import Peer
from peerbayes.peers.transport import Grpc
from peerbayes.peers.wire import Request


async def farewell(peer: Peer) -> dict[str, str]:
    """Tell every neighbour that this peer leaves; return the outcome of each, by name."""
    transport = Grpc(peer, lambda who, reason, detail: None)
    roster = peer.roster
    request = Request(
        wire.VERSION, roster.run, peer.name, "leave", roster=roster.version, roster_digest=roster.digest
    )  # fmt: skip

    async def tell(name: str) -> str:
        try:
            reply = wire.reply_in(await transport.ask(name, wire.encode(request), 5.0), request, name)
        except PeerError as error:
            return f"not told: {error}; it waits for its deadline each round"
        return "told" if reply.status == "ok" else f"refused: {reply.reason}"

    try:
        names = peer.roster.present(peer.name)
        return dict(zip(names, await asyncio.gather(*map(tell, names)), strict=True))
    finally:
        await transport.close()
