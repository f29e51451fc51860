"""Why figures of a run are missing: a sentence for every value of its summary that is not a finite number."""

from __future__ import annotations

import math
from collections.abc import Mapping

from peerbayes.simulation.scores import Scores

NO_TEST = (
    "no test rows are left, so nothing is known of errors on rows that nobody learned from; pass test=(X, y)"
)
NO_REFERENCES = "RC, ML and peers alone were not computed: references were switched off"
OF_ZERO = "the mean of the peers' models is zero or not finite, and disagreement is relative to it"
DIVERGED = "the peers' models diverged: their numbers are not finite; a smaller lr may help"


def missing_figures(summary: Mapping[str, float], scored: Scores) -> dict[str, str]:
    """Return why each value of a summary that is not finite is missing, by its name."""
    tested, referred = math.isfinite(summary["test_error"]), math.isfinite(summary["train_rc"])
    return {
        name: _reason(name, scored.reasons, tested, referred)
        for name, value in summary.items()
        if not math.isfinite(value)
    }


def _reason(name: str, reasons: Mapping[str, str], tested: bool, referred: bool) -> str:
    if name in reasons:
        return reasons[name]
    if name.startswith("test_") and not tested:
        return NO_TEST
    if not referred and name.rpartition("gap_")[2].removeprefix("test_").removeprefix("train_") in REFERRED:
        return NO_REFERENCES
    return OF_ZERO if name == "disagreement" else DIVERGED


REFERRED = ("rc", "rc_end", "ml", "local")
