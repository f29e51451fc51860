"""Noise that two neighbours share, from the secret that their keys give: +Z at one end of a link, −Z at the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from peerbayes.peers.errors import TermsError
from peerbayes.peers.masks import Masker, packed
from peerbayes.peers.roster import Roster
from peerbayes.privacy import edges
from peerbayes.privacy.sampling import Source
from peerbayes.privacy.terms import Privacy


def refuse_thin(roster: Roster, promise: Privacy) -> None:
    """Refuse a network in which edge noise hides too little; the error names the member."""
    if not promise.edge_noise:
        return
    for member in roster.members:
        others = roster.neighbours(member.name)
        if len(others) < edges.FEWEST_NEIGHBOURS:
            raise TermsError(
                f"{member.name} has {len(others)} neighbours ({', '.join(others) or 'nobody'}); edge_noise needs "
                f"{edges.FEWEST_NEIGHBOURS} or more at every peer, since whoever holds most of its keys sees through "
                f"it. Link it to more: `peerbayes network invite … --links …,{member.name}` for those still to join; "
                "or found a network with edge_noise = 0"
            )
    for member in roster.members:
        if len(roster.parts(without=(member.name,))) > 1:
            raise TermsError(
                f"without {member.name} the network falls apart; edge_noise needs one that no peer can cut in two. "
                "Add links, or found a network with edge_noise = 0"
            )
    try:
        edges.exposure(roster.adjacency(), promise.edge_noise, promise.colluders)
    except ValueError as error:
        raise TermsError(f"privacy.{error}") from error


def shared_sources(
    masker: Masker, keys: Mapping[str, bytes], roster: Roster
) -> Callable[[int], dict[str, tuple[Source, int]]]:
    """Return a function: release number -> by neighbour, the source of Z and its sign (+ if first in the roster)."""
    index = roster.place(masker.name)
    signs = {name: 1 if index < roster.place(name) else -1 for name in roster.neighbours(masker.name)}

    def sources(number: int) -> dict[str, tuple[Source, int]]:
        sources_by_name = {}
        for name, sign in signs.items():
            pair = sorted((masker.name.encode(), name.encode()))
            label = packed((roster.network.encode(), roster.run.encode(), number.to_bytes(8, "big"), *pair))
            sources_by_name[name] = edges.keyed(masker.secret(name, keys[name]), label), sign
        return sources_by_name

    return sources
