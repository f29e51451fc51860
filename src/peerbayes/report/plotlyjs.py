"""plotly.js, as plotly's Python package contains it: nothing is downloaded."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

from peerbayes.report.errors import PlotlyMissing


def path() -> Path:
    """Return the path of plotly.js."""
    package = find_spec("plotly")  # not imported: an import takes a second
    if package is None or package.origin is None:
        raise PlotlyMissing("plotly is not installed; a report needs it: pip install 'peerbayes[report]'")
    script = Path(package.origin).parent / "package_data" / "plotly.min.js"
    if not script.exists():
        raise PlotlyMissing(
            f"{script} is missing; install plotly again: pip install --force-reinstall plotly"
        )
    return script


def script() -> str:
    """Return the text of plotly.js, safe inside a <script> element."""
    return path().read_text(encoding="utf-8").replace("</script", "<\\/script").replace("<!--", "<\\!--")


def style_ids(text: str) -> list[str]:
    """Return the ids of the <style> elements that plotly.js adds unless they exist.

    A page that has them, empty, need not allow inline styles: rules added to an allowed sheet pass the policy.
    """
    return ["plotly.js-style-global", *re.findall(r'getElementById\("([0-9a-f]{64})"\)', text)]
