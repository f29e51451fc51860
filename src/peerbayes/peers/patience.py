"""Timeouts of a peer, in seconds; always read as `patience.WAIT`, so that there is one of each."""

from __future__ import annotations

WAIT = 5.0  # that an answer may wait for the requested content
GRACE = 10.0  # added before a call is given up, for slow links
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # between attempts to reach a neighbour
FAREWELL = 2.0  # to tell a neighbour that this peer leaves
DRAIN = 30.0  # to let neighbours learn why this peer stops
