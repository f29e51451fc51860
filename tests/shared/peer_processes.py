"""Peers as processes on this machine: how far they are, their end, and copies of their state."""

import contextlib
import shutil
import time

from peerbayes.errors import PeerError
from peerbayes.peer.state.store import Store
from shared.commands import HANG


def history(home):
    """The rounds in a running peer's store; none while there is no store, or it is being made."""
    try:
        store = Store(home.state_path, readonly=True)
    except PeerError:
        return []
    with contextlib.closing(store):
        return store.history()


def finished(network):
    """Wait for everybody; a peer that failed is an error, and one that missed a killed neighbour is not."""
    end = time.monotonic() + HANG
    while any(process.poll() is None for process in network.processes.values()):
        assert time.monotonic() < end, {name: len(history(home)) for name, home in network.homes.items()}
        time.sleep(0.1)
    for name, process in network.processes.items():
        assert process.returncode in (0, 3), network.homes[name].log_path.read_text()


def copied(source, target):
    """A store's files as they are now."""
    target.mkdir()
    for path in source.glob("state.sqlite*"):
        shutil.copy(path, target)
    return target


def until_round(network, name, turn):
    end = time.monotonic() + HANG
    while len(history(network.homes[name])) <= turn:
        assert time.monotonic() < end and network.processes[name].poll() is None, log_text(network, name)
        time.sleep(0.01)


def log_text(network, name):
    return network.homes[name].log_path.read_text()
