"""A real peer that lies before the first round: `python lying_peer.py LIE FOLDER` is `peerbayes peer run FOLDER`.

Its own report is changed before it is added to anything, so that every neighbour hears the same lie; nothing else of it
is.
"""

import sys
from dataclasses import replace

import msgspec

from peerbayes.cli.app import app
from peerbayes.peer.agreement.runner import AgreementRunner
from peerbayes.peer.agreement.summary import Summary, Sums
from peerbayes.peer.agreement.tree_sums import Integers
from peerbayes.peer.agreement.votes import Ballots


def more_rows(own: Summary) -> Summary:
    return replace(own, rows=10**12)


def far_away(own: Summary) -> Summary:
    columns = {
        name: msgspec.structs.replace(column, total=column.total + 2**60)
        if "continuous" in column.kinds
        else column
        for name, column in own.columns.items()
    }
    return replace(own, columns=columns)


def beyond(own: Ballots) -> Ballots:
    """Digits that are none: a vote for a deviation that is no number, or a report beyond every limit."""
    ((name, (content, proof)),) = own.by_member.items()
    digits = dict.fromkeys(msgspec.msgpack.decode(content), 2**40)
    return Ballots({name: (msgspec.msgpack.encode(digits), proof)})


def more_mass(own: Sums) -> Sums:
    """What goes ahead of a start with a million times the weight."""
    return Sums({name: 10**6 * value for name, value in own.items()})


def swapped(own: Integers) -> Integers:
    """Labels in reverse order, and four times the weight."""
    return Integers(4 * own.values[::-1])


# What it lies about: the phase, and its own report -> the lie.
LIES = {
    "rows": ("columns", more_rows),
    "mean": ("columns", far_away),
    "spread": ("deviation 1", beyond),
    "moments": ("moments", beyond),
    "start": ("bound", more_mass),
    "labels": ("start", swapped),
}


def lying(total, lie):
    """`AgreementRunner._total` of a peer that lies."""
    where, alter = LIES[lie]

    async def altered(*given):
        *self, phase, own = given
        return await total(*self, phase, alter(own) if phase.name == where else own)

    return altered


if __name__ == "__main__":
    AgreementRunner._total = lying(AgreementRunner._total, sys.argv[1])
    sys.argv = ["peerbayes", "peer", "run", sys.argv[2]]
    app()
