"""Documents of runs as files of a folder. Each is read once: no file of them is ever changed, and few are new."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast

from peerbayes.peer.identity.roster import Roster, RunRoster
from peerbayes.peer.runs.documents import Decision, Document, Proposal

D = TypeVar("D", bound=Document)

MOST_ROSTERS = 8  # that are kept: of thousands of members each has megabytes


@dataclass(eq=False)
class StoredDocuments:
    """The files in runs/."""

    path: Path
    _documents: dict[str, tuple[Path, Document]] = field(default_factory=dict)
    _rosters: dict[tuple[str, tuple[int, ...], bytes], Roster] = field(default_factory=dict)
    _of_runs: dict[tuple[Path, int], RunRoster] = field(default_factory=dict)

    def proposals(self, number: int) -> list[tuple[Path, Proposal]]:
        """Return the proposals of a run and their files, in the order of their digests."""
        return self._in(self.path / str(number) / "proposals", Proposal)

    def decisions(self, number: int, proposal: str = "") -> list[tuple[Path, Decision]]:
        """Return the decisions about a run, or about one of its proposals, and their files, in their names' order."""
        return self._in(self.path / str(number) / "decisions", Decision, proposal)

    def _in(self, folder: Path, kind: type[D], begins: str = "") -> list[tuple[Path, D]]:
        try:
            with os.scandir(folder) as entries:
                names = [entry.name for entry in entries]
        except FileNotFoundError:
            return []
        chosen = sorted(
            name for name in names if name.endswith(".json") and name[0] != "." and name.startswith(begins)
        )
        return [cast(tuple[Path, D], self._read(f"{folder}/{name}", kind)) for name in chosen]

    def _read(self, name: str, kind: type[Document]) -> tuple[Path, Document]:
        if (found := self._documents.get(name)) is None:
            path = Path(name)
            found = self._documents[name] = path, kind.unverified(path.read_bytes())
        return found

    def roster(self, path: Path, authority: bytes) -> Roster:
        """Return the roster in a file, verified; once, as long as the file is the same."""
        status = path.stat()
        key = str(path), (status.st_ino, status.st_size, status.st_mtime_ns), authority
        if (roster := self._rosters.get(key)) is None:
            roster = Roster.verified(path.read_bytes(), authority)
            if len(self._rosters) >= MOST_ROSTERS:
                self._rosters.clear()
                self._of_runs.clear()
            self._rosters[key] = roster
        return roster

    def of_run(self, path: Path, authority: bytes, number: int) -> RunRoster:
        """Return the members and links of a run by the roster in a file whose name is its digest."""
        roster = self.roster(path, authority)
        if (found := self._of_runs.get((path, number))) is None:
            found = self._of_runs[path, number] = roster.of_run(number)
        return found
