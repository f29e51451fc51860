"""How long peers of a test wait for each other; a file takes one of these by `pytest.mark.usefixtures`."""

import pytest

WAIT, GRACE = "peerbayes.peer.tasks.WAIT", "peerbayes.peer.tasks.GRACE"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls in memory to a peer that has stopped end when their time is up; let that be soon."""
    monkeypatch.setattr(WAIT, 0.2)
    monkeypatch.setattr(GRACE, 0.2)


@pytest.fixture
def impatient_with_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers answer soon that they have nothing yet, but a call of one that is busy is not given up as soon."""
    monkeypatch.setattr(WAIT, 0.2)
    monkeypatch.setattr(GRACE, 5.0)
