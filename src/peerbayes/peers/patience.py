"""How long a peer waits for others, in seconds; always read as `patience.WAIT`, so that there is one of each."""

from __future__ import annotations

WAIT = 5.0  # that an answer may wait for what was asked
GRACE = 10.0  # on top before a call is given up: a slow link
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # between attempts to reach a neighbour
FAREWELL = 2.0  # to tell a neighbour that this peer does not go on
DRAIN = 30.0  # to let neighbours hear why this peer stops
