"""Colours and what all figures have in common. The page puts its own colours in their place where it is dark."""

from __future__ import annotations

from peerbayes.report.arrays import Spec

# By role. `static/page.css` holds the same colours, and those of a dark page.
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

CLASSES = ("peers", *(f"class-{place}" for place in range(1, 10)))

TRANSPARENT = "rgba(0,0,0,0)"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def colour(role: str) -> str:
    return LIGHT[role]


def class_colour(place: int) -> str:
    """Colours of classes or runs: ten, and then again."""
    return LIGHT[CLASSES[place % len(CLASSES)]]


def faint(role: str, part: float = 0.16) -> str:
    """A role's colour, mostly transparent."""
    red, green, blue = (int(LIGHT[role][place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{part:g})"


def scale(*roles: str) -> list[list[object]]:
    """A colour scale over roles, evenly."""
    return [[place / (len(roles) - 1), LIGHT[role]] for place, role in enumerate(roles)]


def axis(title: str = "", **settings: object) -> Spec:
    """An axis with a light grid; its title is ours, never a name from data."""
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
    """What all figures share; `summary` says in a sentence what there is to see, for those who cannot."""
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
