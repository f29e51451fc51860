"""Break the code on purpose, one small change at a time, and see that the tests notice.

    python tools/mutants.py [area ...] [--only TEXT] [--workers 2] [--check]

An area is a file tools/mutants/AREA.toml. It lists mutants: a file, a text that occurs in it once, what it is replaced
by, and the tests that should fail then (`tests` at the top of the file where a mutant names none):

    [[mutant]]
    file = "src/peerbayes/learning/strategies.py"
    old = "self.rounds // 8"
    new = "self.rounds // 4"
    tests = ["tests/learning/test_strategies.py"]
    equivalent = "why no test can tell the difference"      # only for a mutant that is expected to survive

Each worker has a copy of the tree, and a process that has imported the libraries and runs tests in forks of itself. All
tests that are named must pass there before anything is changed; then every mutant is put in, its tests run until one
fails, and it is taken out again. A mutant is killed if a test fails, or if the tests do not end within --limit seconds.
`--check` only looks whether every mutant still fits the code.

Exit code: 0 if every mutant is killed or listed as equivalent, 1 if one survives, 2 if a list or a test is wrong.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
AREAS = ROOT / "tools" / "mutants"
KEYS = {"file", "old", "new", "tests", "equivalent"}
SERVE = "--serve"  # how the script calls itself: see `serve`

# What pytest returns when a test fails, or when a module cannot even be imported.
FAILED, INTERRUPTED = 1, 2


class BadList(Exception):
    """A list of mutants that does not fit the code."""


@dataclass(frozen=True)
class Mutant:
    """One change of one file, and the tests that should notice it."""

    area: str
    number: int
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    equivalent: str = ""

    def __str__(self) -> str:
        return f"{self.area} {self.number}, {self.file}: {self.old.strip()!r} -> {self.new.strip()!r}"

    def mutated(self, source: str) -> str:
        """Return the source with the change; refuse a text that does not occur once, and what is not Python."""
        count = source.count(self.old)
        if count != 1:
            raise BadList(f"{self}: the text occurs {count} times; expected once")
        if self.old == self.new:
            raise BadList(f"{self}: changes nothing")
        changed = source.replace(self.old, self.new)
        if self.file.endswith(".py"):
            try:
                ast.parse(changed)
            except SyntaxError as error:
                raise BadList(f"{self}: {error}") from error
        return changed


def mutants_of(path: Path) -> list[Mutant]:
    """Read one area."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise BadList(f"{path.name}: {error}") from error
    usual = content.get("tests", [])
    mutants = []
    for number, entry in enumerate(content["mutant"], start=1):
        if unknown := set(entry) - KEYS:
            raise BadList(f"{path.name}, mutant {number}: {sorted(unknown)}; expected {sorted(KEYS)}")
        tests = entry.pop("tests", usual)
        if not tests:
            raise BadList(f"{path.name}, mutant {number}: no tests are named")
        mutants.append(Mutant(path.stem, number, tests=tuple(tests), **entry))
    return mutants


@cache
def text_of(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


def check(mutants: Iterable[Mutant]) -> None:
    """Refuse mutants that do not fit the code as it is, name tests that are not there, or are listed twice."""
    seen = set()
    for mutant in mutants:
        mutant.mutated(text_of(mutant.file))
        change = mutant.file, mutant.old, mutant.new
        if change in seen:
            raise BadList(f"{mutant}: is listed twice")
        seen.add(change)
        for test in mutant.tests:
            name, *functions = test.split("::")
            if not (ROOT / name).is_file():
                raise BadList(f"{mutant}: there is no {name}")
            for function in functions:
                if f"def {function.partition('[')[0]}(" not in text_of(name):
                    raise BadList(f"{mutant}: {name} has no {function}")


class Copy:
    """A copy of the tree, in which mutants are put in and taken out."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        listed = subprocess.run(
            ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        for name in listed.stdout.splitlines():
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        self._clock = time.time()

    def write(self, file: str, source: str) -> None:
        """Write a file with a time of change of its own: Python would take an old .pyc of the same second and size."""
        (self.root / file).write_text(source, encoding="utf-8")
        self._clock += 2
        os.utime(self.root / file, (self._clock, self._clock))

    def run(self, tests: Sequence[str], limit: float, fresh_kernels: bool = False) -> int | None:
        """Run tests until one fails, and return pytest's exit code; None: they were not done in time.

        `fresh_kernels`: compile all, since numba does not see that what a cached kernel calls has changed.
        """
        request = {"tests": list(tests), "limit": limit, "fresh_kernels": fresh_kernels}
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        answer = self._server.stdout.readline()
        if not answer:
            raise BadList(f"the process that runs the tests ended; see {self.printed}")
        return json.loads(answer)

    @property
    def printed(self) -> Path:
        """What the tests printed last."""
        return self.root / "printed.txt"

    @cached_property
    def _server(self) -> Any:
        """A process in which everything is imported but our own code: forks of it need not do so again."""
        environment = os.environ | {"PYTHONPATH": str(self.root / "src"), "OPENBLAS_NUM_THREADS": "1"}
        environment.pop("PYTEST_ADDOPTS", None)
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        return subprocess.Popen(
            [sys.executable, __file__, SERVE], cwd=self.root, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def close(self) -> None:
        if "_server" in vars(self):
            self._server.stdin.close()
            self._server.wait()
            self._server.stdout.close()

    def killed(self, mutant: Mutant, limit: float) -> bool:
        """Return whether the mutant's tests notice it."""
        source = (self.root / mutant.file).read_text(encoding="utf-8")
        self.write(mutant.file, mutant.mutated(source))
        try:
            code = self.run(mutant.tests, limit, fresh_kernels="njit" in source)
        finally:
            self.write(mutant.file, source)
        if code in (None, FAILED, INTERRUPTED):
            return True
        if code == 0:
            return False
        raise BadList(f"{mutant}: pytest ended with {code}\n{self.printed.read_text()[-3000:]}")


def serve() -> None:
    """Run tests for a `Copy`, one request a line, each in a fork of this process."""
    import numba
    import numpy
    import pandas
    import pytest
    import scipy.optimize
    import scipy.sparse
    import scipy.stats
    import sklearn.datasets
    import sklearn.utils.estimator_checks

    imported = (numba, numpy, pandas, scipy.optimize, scipy.sparse, scipy.stats, sklearn.datasets)
    assert all(imported) and sklearn.utils.estimator_checks and "peerbayes" not in sys.modules
    for text in sys.stdin:
        request = json.loads(text)
        with tempfile.TemporaryDirectory() as scratch:
            child = os.fork()
            if child == 0:
                os.setsid()
                output = os.open("printed.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(output, 1)
                os.dup2(output, 2)
                if request["fresh_kernels"]:
                    numba.config.CACHE_DIR = os.environ["NUMBA_CACHE_DIR"] = scratch
                options = [
                    "-x",
                    "-q",
                    "-n",
                    "0",
                    "--all",
                    "-p",
                    "no:cacheprovider",
                    f"--basetemp={scratch}/tests",
                ]
                code = 3  # pytest's own for an internal error
                try:
                    code = int(pytest.main([*options, *request["tests"]]))
                    sys.stdout.flush()
                finally:
                    os._exit(code)
            print(json.dumps(_ended(child, request["limit"])), flush=True)


def _ended(child: int, limit: float) -> int | None:
    """Wait for a process, end it and all that it started, and return its exit code; None if it took too long."""
    deadline, status = time.monotonic() + limit, None
    while status is None and time.monotonic() < deadline:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            status = 0
        else:
            time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, 9)  # its group is still its own: it was not waited for
    _, waited = os.waitpid(child, 0)
    return None if status is None else os.waitstatus_to_exitcode(waited)


def run_all(mutants: list[Mutant], workers: int, limit: float) -> list[Mutant]:
    """Run every mutant and return the survivors."""
    survivors: list[Mutant] = []
    finished, lock = Counter[str](), threading.Lock()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies: queue.Queue[Copy] = queue.Queue()
        for number in range(workers):
            (Path(folder) / str(number)).mkdir()
            copies.put(Copy(Path(folder) / str(number)))

        def untouched(tests: tuple[str, ...]) -> None:
            copy = copies.get()
            try:
                if copy.run(tests, limit) != 0:
                    printed = copy.printed.read_text()[-3000:]
                    raise BadList(f"{' '.join(tests)} must pass before anything is changed\n{printed}")
            finally:
                copies.put(copy)

        def judged(mutant: Mutant) -> None:
            copy = copies.get()
            try:
                killed = copy.killed(mutant, limit)
            finally:
                copies.put(copy)
            with lock:
                finished[mutant.area] += 1
                if not killed:
                    survivors.append(mutant)
                verdict = "killed" if killed else "equivalent" if mutant.equivalent else "SURVIVED"
                print(f"{finished.total():4} of {len(mutants)}  {verdict:10}  {mutant}", flush=True)

        with ThreadPoolExecutor(workers) as pool:
            print("the tests on the code as it is …", flush=True)
            list(pool.map(untouched, sorted({mutant.tests for mutant in mutants})))
            list(pool.map(judged, mutants))
        while not copies.empty():
            copies.get().close()
    return survivors


def main() -> int:
    if sys.argv[1:] == [SERVE]:
        serve()
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("areas", nargs="*", help="all by default")
    parser.add_argument("--only", help="mutants whose file or text contains this")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for the tests of one mutant")
    parser.add_argument("--check", action="store_true", help="only look whether every mutant fits the code")
    options = parser.parse_args()
    try:
        names = options.areas or sorted(path.stem for path in AREAS.glob("*.toml"))
        mutants = [mutant for name in names for mutant in mutants_of(AREAS / f"{name}.toml")]
        if options.only:
            mutants = [
                mutant for mutant in mutants if options.only in f"{mutant.file} {mutant.old} {mutant.new}"
            ]
        check(mutants)
        if options.check:
            print(f"{len(mutants)} mutants fit the code")
            return 0
        survivors = run_all(mutants, options.workers, options.limit)
    except (BadList, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"\n{'area':16} mutants  killed  equivalent  survived")
    for area in sorted({mutant.area for mutant in mutants}):
        those = [mutant for mutant in survivors if mutant.area == area]
        count = sum(mutant.area == area for mutant in mutants)
        equivalent = sum(bool(mutant.equivalent) for mutant in those)
        print(f"{area:16} {count:7} {count - len(those):7} {equivalent:11} {len(those) - equivalent:9}")
    unlisted = [mutant for mutant in survivors if not mutant.equivalent]
    mistaken = [mutant for mutant in mutants if mutant.equivalent and mutant not in survivors]
    for mutant in unlisted:
        print(f"survived: {mutant}")
    for mutant in mistaken:
        print(f"listed as equivalent, but killed: {mutant}")
    return 1 if unlisted else 2 if mistaken else 0


if __name__ == "__main__":
    sys.exit(main())
