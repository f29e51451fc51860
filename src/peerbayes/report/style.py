"""The look of all figures: arrays for plotly, labels, colours, and plotly.js itself."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from peerbayes.data.files import printable
from peerbayes.errors import PlotlyMissing

# --- arrays in plotly's binary form: little-endian bytes in base64, a third of the size of decimal digits

Spec = dict[str, Any]  # a figure, or an element of one, as a plain plotly dictionary

# NumPy dtypes by plotly's names.
DTYPES = {"f4": "<f4", "i4": "<i4", "u1": "u1"}


def packed(values: Any, dtype: str = "f4") -> Spec:
    """Return an array of one or two axes as {"dtype", "bdata"}, with its "shape" where it has two."""
    array = np.ascontiguousarray(values, dtype=DTYPES[dtype])
    spec = {"dtype": dtype, "bdata": base64.b64encode(array.tobytes()).decode("ascii")}
    return spec if array.ndim == 1 else {**spec, "shape": ", ".join(map(str, array.shape))}


def compact_json(content: Any) -> str:
    """Return compact JSON; NumPy numbers are written as numbers."""

    def plain(value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        raise TypeError(f"{value!r} of type {type(value).__name__} cannot be written as JSON")

    return json.dumps(content, allow_nan=False, separators=(",", ":"), default=plain)


def gapped(rows: np.ndarray) -> np.ndarray:
    """Return curves [P, T] concatenated with a NaN after each: [P·(T + 1)], so that one trace draws them all."""
    return np.concatenate([rows, np.full((len(rows), 1), np.nan)], axis=1).ravel()


def number(value: float) -> float | None:
    """Return the value as a JSON number; None where it is not finite."""
    return float(value) if np.isfinite(value) else None


# --- names from data as literal text: in labels plotly interprets a few HTML tags, entities and %{…} templates

LONGEST = 28  # characters of a label; longer ones are cut off


def label(value: Any, longest: int = LONGEST) -> str:
    """Return any value as one line of text, with tags, entities and templates escaped."""
    return escape(shown(value, longest), quote=False).replace("%{", "%&#123;").replace("$", "&#36;")


def shown(value: Any, longest: int = LONGEST) -> str:
    """Return any value as one line of printable characters, not yet escaped."""
    text = " ".join(str(value).split())
    text = printable(text, "\N{REPLACEMENT CHARACTER}")
    return (text if len(text) <= longest else f"{text[: longest - 1]}…") or "(empty)"


def distinct(labels: list[str]) -> list[str]:
    """Return the labels with a number appended to repeated ones: plotly treats equal names as one."""
    counts: dict[str, int] = {}
    distinct_labels = []
    for text in labels:
        counts[text] = counts.get(text, 0) + 1
        distinct_labels.append(text if counts[text] == 1 else f"{text} ({counts[text]})")
    return distinct_labels


def decimal(value: float) -> str:
    """Return a number with about three digits."""
    return f"{value:.3f}" if abs(value) < 1 else f"{value:,.4g}"


# --- colours and common layout of all figures. A dark page replaces these colours with its own

STATIC = Path(__file__).parent / "static"

# Colours by role, on light paper; `figures.js` replaces them with those of a dark page.
LIGHT = dict(re.findall(r"--light-([\w-]+): (#\w+);", (STATIC / "page.css").read_text(encoding="utf-8")))

colour = LIGHT.__getitem__  # the colour of a role
CLASSES = ("peers", *(f"class-{number}" for number in range(1, 10)))
# Places in `CLASSES`: a strategy looks the same in every figure, whichever others are beside it.
STRATEGY_COLOURS = {
    "exact": 0, "crc": 1, "relay": 2, "tracking": 3, "tree-sum": 4, "dsgd": 5, "consensus-ml": 6, "local": 7, "auto": 9,
}  # fmt: skip

TRANSPARENT = "rgba(0,0,0,0)"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def class_colour(index: int) -> str:
    """Return the colour of a class or run: ten colours, repeated."""
    return LIGHT[CLASSES[index % len(CLASSES)]]


def colours_of(names: Sequence[str]) -> list[str]:
    """Return a colour for each name; the package's own strategies have the same colours in all figures."""
    built_in = [name for name in STRATEGY_COLOURS if name in names]
    if built_in:
        others = iter([index for index in range(len(CLASSES)) if index not in STRATEGY_COLOURS.values()])
        return [
            class_colour(STRATEGY_COLOURS[name] if name in built_in else next(others, 0)) for name in names
        ]
    return [class_colour(index) for index in range(len(names))]


def faint(role: str, alpha: float = 0.16) -> str:
    """Return the colour of a role, mostly transparent."""
    return faint_of(LIGHT[role], alpha)


def faint_of(colour: str, alpha: float = 0.16) -> str:
    """Return a colour #rrggbb, mostly transparent."""
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha:g})"


def scale(*roles: str) -> list[list[object]]:
    """Return an even colour scale over roles."""
    return [[index / (len(roles) - 1), LIGHT[role]] for index, role in enumerate(roles)]


def axis(title: str = "", **settings: object) -> Spec:
    """Return an axis with a light grid; its title must not be an unescaped name from data."""
    return {
        "title": {"text": title, "standoff": 8},
        "gridcolor": LIGHT["grid"],
        "linecolor": LIGHT["grid"],
        "zerolinecolor": LIGHT["grid"],
        "zeroline": False,
        "automargin": True,
        **settings,
    }


def figure(
    data: list[Spec], summary: str, height: int = 340, against: list[Spec] | None = None, **settings: Any
) -> Spec:
    """Return a figure with the common layout; `summary` describes it in a sentence, for screen readers.

    `against` has, for each run, what a page can draw it against instead of rounds.
    """
    layout = {
        "height": height,
        "autosize": True,
        "margin": {"l": 48, "r": 16, "t": 12, "b": 40},
        "font": {"family": FONT, "size": 12, "color": LIGHT["ink"]},
        "paper_bgcolor": TRANSPARENT,
        "plot_bgcolor": TRANSPARENT,
        "hoverlabel": {
            "bgcolor": LIGHT["paper"],
            "bordercolor": LIGHT["grid"],
            "font": {"color": LIGHT["ink"], "family": FONT, "size": 12},
        },
        "hovermode": "closest",
        "showlegend": False,
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "bgcolor": TRANSPARENT},
        "meta": {"summary": summary} if against is None else {"summary": summary, "against": against},
        **settings,
    }
    return {"data": data, "layout": layout}


def trace(role: str, x: Any = None, y: Any = None, *, meta: Spec | None = None, **settings: Any) -> Spec:
    """Return a trace, by default a scatter plot; arrays are packed. Pages find it by its role, in its `meta`."""
    arrays = {"x": x, "y": y}
    return {
        "type": "scatter",
        "meta": {"role": role, **(meta or {})},
        **{name: packed(array) for name, array in arrays.items() if isinstance(array, np.ndarray)},
        **{name: values for name, values in arrays.items() if isinstance(values, list | dict)},
        **settings,
    }


def white(spec: Spec) -> Spec:
    """Return a figure on white paper instead of the page's background."""
    paper = {"paper_bgcolor": LIGHT["paper"], "plot_bgcolor": LIGHT["paper"]}
    return {**spec, "layout": spec["layout"] | paper}


# --- plotly.js, as plotly's Python package contains it: nothing is downloaded


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
