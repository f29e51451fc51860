"""Where arrays live and how many processors work on them."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from peerbayes.data.arguments import one_of, refusal, shown
from peerbayes.data.table import Array

# --- this machine: how many processors there are for a process, and how to keep a worker on one thread

# The environment of a worker process that shares a machine with others like it.
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)


def processors() -> int:
    """Return how many processors this process may use, or NUMBA_NUM_THREADS where it is set."""
    if threads := os.environ.get("NUMBA_NUM_THREADS", ""):
        return max(1, int(threads))
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# --- the device and precision of a simulation's arrays: NumPy in memory, or PyTorch on a device

PRECISIONS = ("float64", "float32")


@dataclass(frozen=True)
class Device:
    """A device and a precision: `name` None is NumPy, otherwise PyTorch's name ("cpu", "cuda", "cuda:1")."""

    name: str | None = None
    precision: str = "float64"

    def __post_init__(self) -> None:
        one_of("dtype", self.precision, PRECISIONS)
        if self.name is None:
            return
        if not isinstance(self.name, str):
            raise refusal(
                "device", self.name, "PyTorch's name of a device, such as 'cuda', or None for NumPy"
            )
        try:
            import torch
        except ImportError as error:
            raise ValueError(
                f"device is {shown(self.name)}, and PyTorch is not installed; expected None for NumPy, or "
                "pip install 'peerbayes[torch]'"
            ) from error
        try:  # a round trip: some devices store shapes but no numbers
            torch.zeros(1, device=self.name).cpu()
        except (RuntimeError, AssertionError) as error:
            why = str(error).partition("\n")[0][:200]
            raise ValueError(
                f"device is {shown(self.name)}, which PyTorch cannot use on this machine: {why}; expected one that "
                "it can, or None for NumPy"
            ) from error

    @property
    def fuses(self) -> bool:
        """Whether the fused GPU kernels can run: CUDA, float32, and Triton, which comes with PyTorch."""
        on_gpu = self.name is not None and self.name.startswith("cuda")
        return on_gpu and self.precision == "float32" and find_spec("triton") is not None

    def put(self, array: np.ndarray) -> Array:
        """Return the array on this device, in this precision."""
        if self.name is None:
            return np.asarray(array, dtype=self.precision)
        import torch

        return torch.as_tensor(array, dtype=getattr(torch, self.precision), device=self.name)

    def put_matrix(self, matrix: csr_array) -> Any:
        """Return the sparse matrix on this device; `@` multiplies it with arrays on the device."""
        if self.name is None:
            return matrix.astype(self.precision)
        if self.fuses:
            from peerbayes.model.kernels.peers_gpu import Mixing

            return Mixing.of(matrix, self.name)
        import torch

        # Compressed rows are still beta in PyTorch and say so; coordinates are not.
        rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
        indices = torch.as_tensor(np.stack([rows, matrix.indices]), dtype=torch.int64, device=self.name)
        with warnings.catch_warnings():  # some releases warn that nothing is checked even when checks are on
            warnings.simplefilter("ignore", UserWarning)
            return torch.sparse_coo_tensor(
                indices, self.put(matrix.data), matrix.shape, is_coalesced=True, check_invariants=True
            )


NUMPY = Device()


def fetch(array: Array) -> np.ndarray:
    """Return an array of any library as a NumPy array."""
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()
