"""The history of a run as an array: a row for each evaluated round and peer."""

from __future__ import annotations

from typing import Any

import numpy as np

COLUMNS = ("round", "peer", "train_error", "test_error", "soft_error", "disagreement", "bytes", "floored")


def record(round_index: int, figures: np.ndarray, sent: np.ndarray) -> np.ndarray:
    """Return a row per peer after a round, in the order of `COLUMNS`: `metrics.judged` [5, N], bytes [N] -> [N, 8]."""
    count = sent.size
    return np.stack([np.full(count, float(round_index)), np.arange(count), *figures[:4], sent, figures[4]], 1)


def counted(records: np.ndarray) -> np.ndarray:
    """Return the records [rows, 8] with figures: of peers that did not lie, until they vanish."""
    return records[~np.isnan(records[:, COLUMNS.index("train_error")])]


def history_of(records: np.ndarray) -> Any:
    """Return records [rounds × peers, 8] as a DataFrame."""
    import pandas as pd

    frame = pd.DataFrame(records, columns=list(COLUMNS))
    return frame.astype(dict.fromkeys(("round", "peer", "bytes", "floored"), np.int64))
