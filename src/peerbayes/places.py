"""Where a simulation's arrays are and how precise they are: NumPy in memory, or PyTorch on a device."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from peerbayes.arguments import one_of, refusal, shown
from peerbayes.core import Array

PRECISIONS = ("float64", "float32")


@dataclass(frozen=True)
class Place:
    """`device` None is NumPy; anything else is PyTorch's name of a device ("cpu", "cuda", "cuda:1")."""

    device: str | None = None
    precision: str = "float64"

    def __post_init__(self) -> None:
        one_of("dtype", self.precision, PRECISIONS)
        if self.device is None:
            return
        if not isinstance(self.device, str):
            raise refusal(
                "device", self.device, "PyTorch's name of a device, such as 'cuda', or None for NumPy"
            )
        try:
            import torch
        except ImportError as error:
            raise ValueError(
                f"device is {shown(self.device)}, and PyTorch is not installed; expected None for NumPy, or "
                "pip install 'peerbayes[torch]'"
            ) from error
        try:  # there and back: some devices hold shapes and no numbers
            torch.zeros(1, device=self.device).cpu()
        except (RuntimeError, AssertionError) as error:
            why = str(error).partition("\n")[0][:200]
            raise ValueError(
                f"device is {shown(self.device)}, which PyTorch cannot use here: {why}; expected one that it can, or "
                "None for NumPy"
            ) from error

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
