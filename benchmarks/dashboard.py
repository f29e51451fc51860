"""What being watched costs a simulation: alone, with its rounds on disk, and with a dashboard and 20 viewers.

The three are taken in turns; a ratio is the median over turns. Viewers are a process of their own that reads raw
streams, as browsers elsewhere would. With --one-core all of them share one core: the most that watching can cost.

    python benchmarks/dashboard.py [--turns 15] [--rounds 60] [--peers 320] [--one-core]
"""

import argparse
import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import measuring
from sklearn.datasets import load_digits

import peerbayes as pb
from peerbayes.report.dashboard.access import launch

VIEWERS, LIMIT = 20, 1.05
FEWEST = 9.0  # updates a second, of ten: a look every tenth of a second drifts a little


def viewers(url, number):
    """Read `number` streams until standard input ends; tell what each of them got, as JSON."""
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    ready = selectors.DefaultSelector()
    updates, told, last = [0] * number, [0] * number, [b""] * number
    gaps, seen = [[] for _ in range(number)], [time.monotonic()] * number
    for place in range(number):
        stream = socket.create_connection((host, int(port)))
        stream.sendall(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        stream.setblocking(False)
        ready.register(stream, selectors.EVENT_READ, place)
    ready.register(sys.stdin, selectors.EVENT_READ, None)
    print("ready", flush=True)
    reloads = 0
    while True:
        for key, _ in ready.select():
            if key.data is None:
                print(
                    json.dumps(
                        {
                            "updates": updates,
                            "bytes": told,
                            "reloads": reloads,
                            "gaps": list(map(median, gaps)),
                        }
                    )
                )
                return
            content = key.fileobj.recv(1 << 18)
            told[key.data] += len(content)
            whole = last[key.data] + content
            count = whole.count(b"event: update\n")
            if count:
                now = time.monotonic()
                gaps[key.data] += [(now - seen[key.data]) / count] * count
                updates[key.data], seen[key.data] = updates[key.data] + count, now
            reloads += whole.count(b"event: reload\n")
            last[key.data] = whole[-13:] if not whole.endswith(b"\n") else b""


class Watching:
    """A dashboard of a folder and viewers of it, that stand still unless they are let go."""

    def __init__(self, folder):
        self.resources = contextlib.ExitStack()
        self.dashboard = self.resources.enter_context(launch(folder, "0"))
        words = [sys.executable, __file__, "--viewers", self.dashboard.url, str(VIEWERS)]
        self.viewers = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.viewers.stdout.readline() == "ready\n"
        self.seconds = 0.0
        self._signal(signal.SIGSTOP)

    @contextlib.contextmanager
    def going(self):
        self._signal(signal.SIGCONT)
        began = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - began
        self._signal(signal.SIGSTOP)

    def end(self):
        """What the viewers got, and what processor time the dashboard took."""
        taken = spent(self.dashboard.process.pid)
        self._signal(signal.SIGCONT)
        told = json.loads(self.viewers.communicate()[0])
        self.resources.close()
        return told, taken

    def _signal(self, number):
        for process in (self.dashboard.process, self.viewers):
            process.send_signal(number)


def spent(pid):
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--viewers", nargs=2, help=argparse.SUPPRESS)
    for name, value in (("turns", 15), ("rounds", 60), ("peers", 320)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--one-core", action="store_true")
    asked = parser.parse_args()
    if asked.viewers:
        viewers(asked.viewers[0], int(asked.viewers[1]))
        return 0
    if asked.one_core:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # also of the processes that it starts
    X, y = load_digits(return_X_y=True)
    settings = {
        "peers": asked.peers,
        "rows_per_peer": 4,
        "partition": "drift-y",
        "rounds": asked.rounds,
        "evaluate_rows": 64,
    }

    def timed(live):
        wall, own = time.perf_counter(), time.process_time()
        pb.simulate(X, y, **settings, references=False, live=live)
        return time.perf_counter() - wall, time.process_time() - own

    times = {"alone": [], "written": [], "watched": []}
    with tempfile.TemporaryDirectory() as folder:
        live = Path(folder) / "run"
        timed(live)
        watching = Watching(live)
        started = spent(watching.dashboard.process.pid)
        for turn in range(asked.turns):
            for name in list(times)[turn % 3 :] + list(times)[: turn % 3]:  # no order favours one of them
                with watching.going() if name == "watched" else contextlib.nullcontext():
                    times[name].append(timed(None if name == "alone" else live))
            print("  ".join(f"{name} {taken[-1][0]:.2f} s" for name, taken in times.items()), flush=True)
        told, taken = watching.end()
    rate = [1.0 / gap for gap in told["gaps"]]  # while rounds go on: a simulation takes a moment to begin
    alone = [wall for wall, _ in times["alone"]]
    print(
        f"\n{asked.peers} peers, {asked.rounds / median(alone):.0f} rounds a second alone, {os.cpu_count()} cores"
    )
    print(
        f"{VIEWERS} viewers: {min(rate):.1f} to {max(rate):.1f} updates a second each, "
        f"{told['bytes'][0] / max(told['updates'][0], 1) / 1e3:.1f} kB an update, {told['reloads']} reloads in all"
    )
    print(f"the dashboard took {(taken - started) / watching.seconds:.1%} of a core")
    for name in ("written", "watched"):
        for place, what in enumerate(("seconds", "processor seconds of its own")):
            each = [one[place] / other[place] for one, other in zip(times[name], times["alone"], strict=True)]
            lowest = min(one[place] for one in times[name]) / min(one[place] for one in times["alone"])
            print(f"{name:<8} {median(each):.3f} times the {what} (by the lowest {lowest:.3f})")
            if (name, place) == ("watched", 0):
                ratio = median(each)
    measuring.report(
        f"a simulation watched by {VIEWERS} viewers / alone", ratio, f"<= {LIMIT}", ratio <= LIMIT
    )
    measuring.report("updates a second, the slowest viewer", min(rate), f">= {FEWEST}", min(rate) >= FEWEST)
    return measuring.verdict()


if __name__ == "__main__":
    sys.exit(main())
