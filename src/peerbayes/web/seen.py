"""What one look at a folder gives: a view to draw, and facts to tell in words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from peerbayes.views import View

Kind = Literal["run", "peer", "nothing"]


@dataclass(frozen=True, eq=False)
class Seen:
    """A folder at one moment. Two looks at the same run have the same key."""

    kind: Kind
    key: tuple[object, ...]
    facts: dict[str, Any]
    """Plain values: names, rounds, neighbours."""
    view: View | None = None
    model: int = 0
    """Counts the models seen, so that their figures are drawn again only when they change."""
    lines: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    """The last lines of an audit log, oldest first, each with its number."""

    def same(self, before: Seen) -> bool:
        """Whether there is nothing to tell that was not told before."""
        return (
            self.follows(before)
            and self.view is before.view
            and self.facts == before.facts
            and self.lines == before.lines
        )

    def follows(self, before: Seen) -> bool:
        """Whether it is the same run, further on: figures can grow instead of being drawn anew."""
        return self.kind == before.kind and self.key == before.key
