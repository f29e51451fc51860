"""plotly.js, from plotly's Python package: nothing is fetched from anywhere."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from peerbayes.report.errors import PlotlyMissing


def path() -> Path:
    """Where plotly.js lies."""
    found = find_spec("plotly")  # not imported: that takes a second
    if found is None or found.origin is None:
        raise PlotlyMissing("plotly is not installed; a report needs it: pip install 'peerbayes[report]'")
    script = Path(found.origin).parent / "package_data" / "plotly.min.js"
    if not script.exists():
        raise PlotlyMissing(
            f"{script} is missing; install plotly again: pip install --force-reinstall plotly"
        )
    return script


def script() -> str:
    """Its text, safe inside a <script> element."""
    return path().read_text(encoding="utf-8").replace("</script", "<\\/script").replace("<!--", "<\\!--")


def style_ids(text: str) -> list[str]:
    """Ids of the <style> elements that plotly.js adds where it finds none of that name.

    A page that has them, empty, need not allow inline styles: rules added to an allowed sheet pass.
    """
    return ["plotly.js-style-global", *re.findall(r'getElementById\("([0-9a-f]{64})"\)', text)]
