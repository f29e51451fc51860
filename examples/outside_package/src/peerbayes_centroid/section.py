"""A section of a report: how many rows each peer has."""

from typing import Any


def rows_of_peers(run: Any) -> dict[str, Any]:
    """Return plotly figures by title, as dictionaries."""
    sizes = sorted(map(int, run.sizes), reverse=True)
    bars = {"type": "bar", "x": list(range(1, len(sizes) + 1)), "y": sizes}
    return {"Rows of each peer": {"data": [bars], "layout": {"xaxis": {"title": {"text": "peer"}}}}}
