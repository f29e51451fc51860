"""Run the benchmarks of speed and write their figures as a page.

    python benchmarks/all.py docs/performance.md                  an hour on a quiet machine
    python benchmarks/all.py docs/performance.md --rows 10000     minutes, on at most so many rows

Each benchmark is a command of its own as well. The exit code says whether every limit was met.
"""

import measuring  # isort: skip  # before numpy: it limits the threads

import argparse
import platform
import sys
from collections.abc import Callable
from pathlib import Path

import first_call
import predictions
import simulate
import study

BENCHMARKS: dict[str, tuple[str, Callable[[], int]]] = {
    "first_call.py": ("What the first calls of a process cost", first_call.main),
    "predictions.py": ("Predictions and fits beside scikit-learn's", predictions.main),
    "study.py": ("What a study costs beside bare calls", study.main),
    "simulate.py": ("Simulations beside a plain script, and beside their bare products", simulate.main),
}

HEAD = """# Performance

Figures of `python benchmarks/all.py`, in processor time on one thread: ratios to what is named after the slash, or what
is named after the colon. Intervals cover the ratio in 95 of 100 such runs; a limit is missed where all of the interval
is beyond it. {where}
"""


def table(figures: list[tuple[str, str, str, str, bool]]) -> str:
    """Return figures as a table in Markdown."""
    lines = ["| what | figure | interval | limit | |", "|---|---|---|---|---|"]
    lines += [
        f"| {what} | {value} | {interval} | {limit} | {'ok' if met else '**missed**'} |"
        for what, value, interval, limit, met in figures
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("page", type=Path, help="the page to write")
    parser.add_argument("--rows", type=int, help="at most so many rows")
    options = parser.parse_args()
    where = f"Python {platform.python_version()} on {platform.machine()}"
    where += f", at most {options.rows:,} rows." if options.rows else "."
    parts = [HEAD.format(where=where)]
    for name, (title, run) in BENCHMARKS.items():
        print(f"{title}: python benchmarks/{name}")
        few = ["--rows", str(options.rows)] if options.rows and name == "predictions.py" else []
        sys.argv = [name, *few]
        begin = len(measuring.figures)
        run()
        command = " ".join(["python", f"benchmarks/{name}", *few])
        parts.append(f"## {title}\n\n`{command}`\n\n{table(measuring.figures[begin:])}\n")
    options.page.write_text("\n".join(parts), encoding="utf-8")
    return measuring.verdict()


if __name__ == "__main__":
    sys.exit(main())
