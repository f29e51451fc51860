"""Where a simulation's arrays are and how precise they are: NumPy in memory, or PyTorch on a device."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from peerbayes.core import Array

PRECISIONS = ("float64", "float32")


@dataclass(frozen=True)
class Place:
    """`device` None is NumPy; anything else is PyTorch's name of a device ("cpu", "cuda", "cuda:1")."""

    device: str | None = None
    precision: str = "float64"

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise ValueError(f"dtype is {self.precision!r}; expected one of {', '.join(PRECISIONS)}")
        if self.device is None:
            return
        try:
            import torch
        except ImportError as error:
            raise ValueError(
                f"device={self.device!r} needs PyTorch: pip install 'peerbayes[torch]', or leave device out"
            ) from error
        try:
            torch.empty(0, device=self.device)
        except (RuntimeError, AssertionError) as error:
            raise ValueError(f"device is {self.device!r}, which PyTorch cannot use here: {error}") from error

    @property
    def fuses(self) -> bool:
        """Whether the fused kernels for GPUs run there: CUDA, float32, and Triton, which comes with PyTorch."""
        on_gpu = self.device is not None and self.device.startswith("cuda")
        return on_gpu and self.precision == "float32" and find_spec("triton") is not None

    def put(self, array: np.ndarray) -> Array:
        """An array of numbers, brought there."""
        if self.device is None:
            return np.asarray(array, dtype=self.precision)
        import torch

        return torch.as_tensor(array, dtype=getattr(torch, self.precision), device=self.device)

    def put_matrix(self, matrix: csr_array) -> Any:
        """A sparse matrix, brought there; `@` multiplies it with arrays that are there."""
        if self.device is None:
            return matrix.astype(self.precision)
        if self.fuses:
            from peerbayes.fused_gpu import Mixing

            return Mixing.of(matrix, self.device)
        import torch

        # Compressed rows are still beta in PyTorch and say so; coordinates are not.
        rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
        indices = torch.as_tensor(np.stack([rows, matrix.indices]), dtype=torch.int64, device=self.device)
        with warnings.catch_warnings():  # some releases warn that nothing is checked, whatever is asked for
            warnings.simplefilter("ignore", UserWarning)
            return torch.sparse_coo_tensor(
                indices, self.put(matrix.data), matrix.shape, is_coalesced=True, check_invariants=True
            )


HERE = Place()


def fetch(array: Array) -> np.ndarray:
    """An array of any library as NumPy's."""
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()
