"""The datasets that come with scikit-learn: no file, no download."""

from __future__ import annotations

from typing import TYPE_CHECKING

from peerbayes.datasets.expected import Expected
from peerbayes.datasets.registry import CC_BY, UCI, Entry, names

if TYPE_CHECKING:
    import pandas as pd

CELL = names(
    "radius, texture, perimeter, area, smoothness, compactness, concavity, concave points, symmetry, fractal dimension"
)


def _bundled(name: str, expected: Expected, description: str, page: str) -> Entry:
    """Return the entry of a dataset that is installed with scikit-learn: no file, no download."""
    return Entry(name, (), expected, description, f"{UCI}/dataset/{page}", CC_BY)


BUNDLED = (
    _bundled(
        "iris",
        Expected(
            150,
            names("sepal length (cm), sepal width (cm), petal length (cm), petal width (cm)"),
            "target",
            3,
            "balanced",
        ),
        "Flowers of three kinds of iris.",
        "53/iris",
    ),
    _bundled(
        "wine",
        Expected(
            178,
            names(
                "alcohol, malic_acid, ash, alcalinity_of_ash, magnesium, total_phenols, flavanoids, "
                "nonflavanoid_phenols, proanthocyanins, color_intensity, hue, od280/od315_of_diluted_wines, proline"
            ),
            "target",
            3,
            ("class_1", 0.3989),
        ),
        "Wines of three growers.",
        "109/wine",
    ),
    _bundled(
        "breast-cancer",
        Expected(
            569,
            (
                *(f"mean {name}" for name in CELL),
                *(f"{name} error" for name in CELL),
                *(f"worst {name}" for name in CELL),
            ),
            "target",
            2,
            ("malignant", 0.3726),
        ),
        "Cells of tumours of the breast, malignant or benign.",
        "17/breast+cancer+wisconsin+diagnostic",
    ),
    _bundled(
        "digits",
        Expected(
            1797,
            tuple(f"pixel_{row}_{column}" for row in range(8) for column in range(8)),
            "target",
            10,
            "balanced",
        ),
        "Handwritten digits, 8 x 8 pixels.",
        "80/optical+recognition+of+handwritten+digits",
    ),
)


def read(entry: Entry) -> pd.DataFrame:
    """Return a table of scikit-learn's, with the names of its classes as labels."""
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{entry.name.replace('-', '_')}")(as_frame=True)
    return bunch.data.assign(**{entry.expected.label: bunch.target_names[bunch.target.to_numpy()]})
