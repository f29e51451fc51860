"""A snapshot of a folder: a view to draw, and facts to show as text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from peerbayes.simulation.view import View

Kind = Literal["run", "peer", "nothing"]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The state of a folder at one moment. Snapshots of the same run have the same key."""

    kind: Kind
    key: tuple[object, ...]
    facts: dict[str, Any]
    """Plain values: names, rounds, neighbours."""
    view: View | None = None
    model: int = 0
    """Version of the model, so that its figures are redrawn only when it changes."""
    log_entries: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    """The last entries of the audit log, oldest first, each with its number."""

    def same(self, before: Snapshot) -> bool:
        """Return whether nothing changed since `before`."""
        return (
            self.follows(before)
            and self.view is before.view
            and self.facts == before.facts
            and self.log_entries == before.log_entries
        )

    def follows(self, before: Snapshot) -> bool:
        """Return whether it is the same run, so that figures can grow instead of being redrawn."""
        return self.kind == before.kind and self.key == before.key
