"""What the first calls of a process cost, in processor time: nobody waits for a compiler.

    python benchmarks/first_call.py

Each line is the least of several new processes. "Nowhere" is a copy of the package in which nothing can be written, in
a process without a home directory and with an empty folder of temporary files.
"""

import measuring  # isort: skip  # one thread, before numpy

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import peerbayes

PROCESSES = 2

# Seconds: what the first fit may take beyond the second, and importing beyond numpy and scikit-learn.
FIRST_FIT, IMPORT = 0.3, 0.5

TABLE = """
import time, numpy as np, peerbayes as pb
rng = np.random.default_rng(0)
y = rng.integers(0, 2, {rows})
X = rng.normal(size=({rows}, 20)) + 0.5 * y[:, None]
pb.{estimator}  # imports scikit-learn
begun = time.process_time(); pb.{estimator}().fit(X, y)
first = time.process_time() - begun
begun = time.process_time(); pb.{estimator}().fit(X, y)
print(first - (time.process_time() - begun))
"""

IMPORTED = "import time; begun = time.process_time(); {statement}; print(time.process_time() - begun)"
BASE = "import numpy, sklearn.base, sklearn.utils.validation, sklearn.utils.multiclass"


def least(code: str, environment: dict[str, str] | None = None) -> float:
    """Return the lowest number that new processes print."""
    command = [sys.executable, "-c", code]
    done = (
        subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        for _ in range(PROCESSES)
    )
    return min(float(process.stdout) for process in done)


def nowhere(folder: Path) -> dict[str, str]:
    """Return the environment of a process that finds the package where nothing can be written, and no home."""
    package = Path(peerbayes.__file__).parent
    for path in package.rglob("*.py"):
        copied = folder / "read-only" / "peerbayes" / path.relative_to(package)
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_bytes(path.read_bytes())
        cache = copied.parent / "__pycache__"
        cache.exists() or cache.write_text("a file, so that no folder can have this name")
    temporary = folder / "temporary"
    temporary.mkdir()
    kept = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    places = {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null", "TMPDIR": str(temporary)}
    return kept | places | {"PYTHONPATH": str(folder / "read-only")}


def main() -> int:
    extra = least(IMPORTED.format(statement="import peerbayes; peerbayes.MixedNB")) - least(
        IMPORTED.format(statement=BASE)
    )
    what = "importing an estimator beyond numpy and scikit-learn: seconds"
    measuring.report(what, extra, f"<= {IMPORT}", extra <= IMPORT)
    with tempfile.TemporaryDirectory() as folder:
        for where, environment in (("installed", None), ("nowhere", nowhere(Path(folder)))):
            for estimator in ("MixedNB", "QDA", "LDA"):
                seconds = least(TABLE.format(rows=200_000, estimator=estimator), environment)
                what = f"{estimator}, first fit of 200,000 x 20 beyond the second, {where}: seconds"
                measuring.report(what, seconds, f"<= {FIRST_FIT}", seconds <= FIRST_FIT)
    return measuring.verdict()


if __name__ == "__main__":
    sys.exit(main())
