"""The folder of a simulation as the dashboard shows it, and the snapshots that all folders give."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from peerbayes.report.curves import references
from peerbayes.report.style import number
from peerbayes.simulation.result import LIVE_FILE, RUN_FILE
from peerbayes.simulation.view import LEVELS, Following, NothingToWatch, View


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The state of a folder at one moment. Snapshots of the same run have the same key."""

    kind: Literal["run", "runs", "peer", "nothing"]
    key: tuple[object, ...]
    facts: dict[str, Any]
    """Plain values: names, rounds, neighbours."""
    view: View | None = None
    model: int = 0
    """Version of the model, so that its figures are redrawn only when it changes."""
    log_entries: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    """The last entries of the audit log, oldest first, each with its number."""
    views: tuple[View, ...] = ()
    """Of several runs beside each other."""

    def same(self, before: Snapshot) -> bool:
        """Return whether nothing changed since `before`."""
        shown = self.facts == before.facts and self.log_entries == before.log_entries
        same_views = len(self.views) == len(before.views) and all(
            view is earlier for view, earlier in zip(self.views, before.views, strict=True)
        )
        return self.follows(before) and self.view is before.view and same_views and shown

    def follows(self, before: Snapshot) -> bool:
        """Return whether it is the same run, so that figures can grow instead of being redrawn."""
        return self.kind == before.kind and self.key == before.key


def speed(rounds: Sequence[tuple[float, int]]) -> float | None:
    """Return rounds per second between the first and the last of (time, round); None where unknown."""
    if not rounds or rounds[-1][0] - rounds[0][0] < 1e-3:
        return None
    return (rounds[-1][1] - rounds[0][1]) / (rounds[-1][0] - rounds[0][0])


SPEED_WINDOW = 10.0  # seconds over which the speed is measured


class RunFolder:
    """The folder of a run, finished or not, which is read repeatedly."""

    def __init__(self, folder: Path) -> None:
        self._following, self._name = Following(folder), folder.resolve().name
        self._last_view: View | None = None
        self._runs = 0
        self._recent_rounds: deque[tuple[float, int]] = deque()

    def look(self) -> Snapshot:
        """Return the current snapshot of the run."""
        view, recent = self._following.look(), self._recent_rounds
        if self._last_view is None or not _continues(view, self._last_view):
            self._runs += 1
            recent.clear()
        self._last_view = view
        latest = self._following.at, view.round_index
        if not recent or recent[-1] != latest:
            recent.append(latest)
        while len(recent) > 2 and recent[0][0] < latest[0] - SPEED_WINDOW:
            recent.popleft()
        facts = {
            "name": self._name,
            "strategy": str(view.configuration["strategy"]),
            "peers": view.peer_count,
            "round": view.round_index,
            "rounds": view.total,
            "finished": view.finished,
            "at": self._following.at,
            "speed": speed(recent),
            "seconds": len(view.seconds) > 0 or not len(view.rounds),
            "references": dict(references(view)),
            "awaits_references": view.awaits_references,
        }
        return Snapshot("run", (self._runs,), facts, view)


def has_run(folder: Path) -> bool:
    """Return whether a folder has a run, finished or not."""
    return (folder / LIVE_FILE).exists() or (folder / RUN_FILE).exists()


def runs_below(folder: Path) -> list[Path]:
    """Return the folder itself where it has a run, or its subfolders that have one, by name."""
    if has_run(folder):
        return [folder]
    return sorted({path.parent for name in (LIVE_FILE, RUN_FILE) for path in folder.glob(f"*/{name}")})


class RunFolders:
    """Several runs beside each other, in folders or in their subfolders; new ones appear when they begin."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._open: dict[Path, RunFolder] = {}
        self._titled: dict[Path, tuple[View, View]] = {}
        self._last_views: tuple[View, ...] = ()
        self._version = 0

    def look(self) -> Snapshot:
        """Return the current snapshot of all runs."""
        paths = list(dict.fromkeys(path for folder in self._folders for path in runs_below(folder)))
        if not paths:
            raise NothingToWatch(f"{', '.join(map(str, self._folders))}: no run has begun there")
        snapshots = {path: self._open.setdefault(path, RunFolder(path)).look() for path in paths}
        views = tuple(self._with_title(path, snapshot) for path, snapshot in snapshots.items())
        if len(views) != len(self._last_views) or any(
            view is not before for view, before in zip(views, self._last_views, strict=True)
        ):
            self._version += 1
        self._last_views = views
        runs = [{**snapshot.facts, "error": _error(snapshot.view)} for snapshot in snapshots.values()]
        facts = {
            "name": f"{len(runs)} runs",
            "runs": runs,
            "round": sum(run["round"] for run in runs),
            "rounds": sum(run["rounds"] for run in runs),
            "finished": all(run["finished"] for run in runs),
            "at": max(run["at"] for run in runs),
            "seconds": all(run["seconds"] for run in runs),
            "peers": sum(run["peers"] for run in runs),
        }
        return Snapshot("runs", (self._version,), facts, views=views)

    def _with_title(self, path: Path, snapshot: Snapshot) -> View:
        """Return the view with the folder's name as its title: the same object as before if nothing has changed."""
        assert snapshot.view is not None
        before = self._titled.get(path)
        if before is None or before[0] is not snapshot.view:
            titled = replace(snapshot.view, title=str(snapshot.facts["name"]))
            self._titled[path] = snapshot.view, titled
        return self._titled[path][1]


def _error(view: View | None) -> float | None:
    """Return the peers' mean error after the last evaluated round; None before."""
    if view is None or not len(view.rounds):
        return None
    return number(view.spread[view.error][-1, LEVELS.index("mean")])


def _continues(view: View, before: View) -> bool:
    """Return whether it is the same simulation at the same or a later round."""
    return (
        view.finished == before.finished
        and (view is before or not view.finished)
        and view.made == before.made
        and view.round_index >= before.round_index
        and view.configuration == before.configuration
    )
