"""Tables as bytes: Parquet and .npz in folders and caches, and CSV for imports."""

from __future__ import annotations

import importlib.util
import io
from typing import TYPE_CHECKING, Any

import numpy as np

from peerbayes.datasets.errors import DatasetDamaged, DatasetError
from peerbayes.datasets.origins import AS_WRITTEN

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".parquet", ".npz", ".csv")


def need_parquet() -> None:
    """Refuse early, before anything is downloaded, where pyarrow is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise DatasetError(
            "files of datasets are Parquet, which needs pyarrow: pip install 'peerbayes[data]'"
        )


def decode(content: bytes, suffix: str, label: str, where: object) -> pd.DataFrame:
    """Return the table of a file, by its suffix; the arrays X and y of an .npz become f0, f1, … and the label."""
    if suffix == ".parquet":
        need_parquet()
    try:
        return {".parquet": _parquet, ".npz": _arrays, ".csv": _csv}[suffix](content, label)
    except Exception as error:  # untrusted bytes: pandas, pyarrow and zipfile fail in many ways
        raise DatasetDamaged(f"{where} cannot be read as {suffix}: {error}") from error


def encode(frame: pd.DataFrame, suffix: str) -> bytes:
    """Return the bytes of a table, the label last, for a file of the cache."""
    buffer = io.BytesIO()
    if suffix == ".parquet":
        frame.to_parquet(buffer, index=False)
    else:
        features, labels = frame.iloc[:, :-1].to_numpy(), frame.iloc[:, -1].to_numpy()
        np.savez(buffer, X=_halved(features), y=labels)
    return buffer.getvalue()


def _parquet(content: bytes, label: str) -> pd.DataFrame:
    import pandas as pd

    return pd.read_parquet(io.BytesIO(content))


def _csv(content: bytes, label: str) -> pd.DataFrame:
    import pandas as pd

    first = content.partition(b"\n")[0]
    separator = max((",", ";", "\t"), key=lambda mark: first.count(mark.encode()))
    return pd.read_csv(io.BytesIO(content), sep=separator, encoding="utf-8-sig", **AS_WRITTEN)


def _arrays(content: bytes, label: str) -> pd.DataFrame:
    import pandas as pd

    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        features, labels = arrays["X"], arrays["y"]
    if features.ndim != 2 or features.dtype.kind != "f" or labels.shape != features.shape[:1]:
        raise ValueError(
            f"X is {features.dtype} {features.shape} and y {labels.shape}; expected floats [n, D] and [n]"
        )
    # float16 is for storage, not for computing: its sums overflow at 65,504.
    wide: Any = features.astype(np.float32) if features.dtype == np.float16 else features
    frame = pd.DataFrame(wide, columns=[f"f{index}" for index in range(features.shape[1])])
    frame[label] = labels.astype(np.int64) if labels.dtype.kind in "iu" else labels
    return frame


def _halved(features: np.ndarray) -> np.ndarray:
    """Return the features as float16 where that loses nothing."""
    with np.errstate(over="ignore"):
        half = features.astype(np.float16)
    return half if np.array_equal(half, features) else features
