"""A whole network on this machine, for demos and tests: a folder and a process per peer, mutual TLS between them."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pandas as pd

from peerbayes.errors import PeerError
from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.identity.founder import Founder
from peerbayes.peer.identity.roster import listens
from peerbayes.peer.learning.verdict import ENDED_BADLY
from peerbayes.peer.state.folder import Home

# Systems take the ports of outgoing connections from higher up (Linux from 32768 on).
LOWEST_PORT, PORTS_END = 10_240, 32_768
SLICES = 16  # of that range; processes that search at the same time mostly use different ones


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that nobody listens on.

    Not those that the system would choose: it may give them to outgoing connections at any moment. They are drawn from
    the system's randomness: processes that seed `random` alike would get the same ones.
    """
    ports: list[int] = []
    size = (PORTS_END - LOWEST_PORT) // SLICES
    first = LOWEST_PORT + os.getpid() % SLICES * size
    for port in random.SystemRandom().sample(range(first, first + size), size):
        if len(ports) == count:
            break
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        ports.append(port)
    return ports


@dataclass
class Loopback:
    """Folders of a network's founder and its peers, and the peers' processes."""

    founder: Founder
    homes: dict[str, Home]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @classmethod
    def create(
        cls,
        folder: Path,
        terms: Terms,
        tables: Sequence[pd.DataFrame],
        links: Sequence[tuple[int, int]],
        addresses: Sequence[str] | None = None,
    ) -> Self:
        """Found a network in `folder` with a peer for each table; links are pairs of their numbers.

        Peers are at these addresses, or at free ports of 127.0.0.1; some may be outbound, or wait at a relay.
        """
        names = [f"peer-{number + 1}" for number in range(len(tables))]
        if addresses is None:
            addresses = [f"127.0.0.1:{port}" for port in free_ports(len(tables))]
        founder = Founder.create(folder / "network", terms.to_toml(), len(tables))
        homes = {}
        for index, (name, table, address) in enumerate(zip(names, tables, addresses, strict=True)):
            rows = folder / name / "rows.csv"
            rows.parent.mkdir(parents=True)
            table.to_csv(rows, index=False)
            homes[name] = Home.create(
                rows.parent, name, address, str(rows), listen=address if listens(address) else None
            )
            neighbours = [
                names[a if b == index else b]
                for a, b in links
                if index in (a, b) and min(a, b) < index == max(a, b)
            ]
            invitation = founder.invite(
                name, homes[name].request_path.read_bytes(), address, neighbours, False
            )
            homes[name].join(invitation.pack())
        for home in homes.values():  # those that joined early have an older roster
            home.join(founder.roster_path.read_bytes())
        return cls(founder, homes)

    def start(self, name: str, *options: str, command: str = "run") -> subprocess.Popen[bytes]:
        """Start a peer, or start it again; `command` is that of `peerbayes peer`: run, or serve."""
        home = self.homes[name]
        with home.log_path.open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "peerbayes", "peer", command, str(home.folder), *options],
                stderr=log, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        return self.processes[name]

    def wait(self, progress: Callable[[], None] | None = None, every: float = 0.1) -> None:
        """Wait until all processes have ended, calling `progress` meanwhile; PeerError where one failed."""
        while (running := [p for p in self.processes.values() if p.poll() is None]) and not self._failed():
            if progress is not None:
                progress()
            with contextlib.suppress(subprocess.TimeoutExpired):
                running[0].wait(every)
        if failed := self._failed():
            self.stop()
            log = self.homes[failed[0]].log_path.read_text(errors="replace").strip().splitlines()
            raise PeerError(
                f"{failed[0]} ended with {self.processes[failed[0]].returncode}: {' / '.join(log[-3:])}"
            )

    def _failed(self) -> list[str]:
        """Return the peers that failed; one that ended badly has a model, and `status` says what is wrong."""
        fine = (None, 0, ENDED_BADLY)
        return [name for name, process in self.processes.items() if process.poll() not in fine]

    def stop(self) -> None:
        """End all processes."""
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
        for process in self.processes.values():
            process.wait()
