"""Colours and common layout of all figures. A dark page replaces these colours with its own."""

from __future__ import annotations

from peerbayes.report.arrays import Spec

# Colours by role. `static/page.css` has the same colours, and those of a dark page.
LIGHT = {
    "ink": "#1c2230",
    "muted": "#58616f",
    "grid": "#e4e7ec",
    "paper": "#ffffff",
    "peers": "#2563a8",
    "rc": "#0f7b5f",
    "ml": "#b45309",
    "local": "#7b4fa3",
    "chosen": "#d1225b",
    "class-1": "#c2541c",
    "class-2": "#0e7c66",
    "class-3": "#b02a74",
    "class-4": "#7446a8",
    "class-5": "#7a6400",
    "class-6": "#0a84ad",
    "class-7": "#5f6570",
    "class-8": "#8a4b2a",
    "class-9": "#5b8c00",
    "low": "#2f6fb1",
    "middle": "#9a5aa8",
    "high": "#e8763a",
    "none": "#fdfdfe",
    "some": "#9dc0e5",
    "much": "#174a85",
}

CLASSES = ("peers", *(f"class-{number}" for number in range(1, 10)))

TRANSPARENT = "rgba(0,0,0,0)"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def colour(role: str) -> str:
    return LIGHT[role]


def class_colour(index: int) -> str:
    """Return the colour of a class or run: ten colours, repeated."""
    return LIGHT[CLASSES[index % len(CLASSES)]]


def faint(role: str, alpha: float = 0.16) -> str:
    """Return the colour of a role, mostly transparent."""
    red, green, blue = (int(LIGHT[role][start : start + 2], 16) for start in (1, 3, 5))
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


def layout(summary: str, height: int = 340, **settings: object) -> Spec:
    """Return the common layout; `summary` describes the figure in a sentence, for screen readers."""
    return {
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
        "meta": {"summary": summary},
        **settings,
    }
