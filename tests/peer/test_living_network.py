"""A network that lives, with real processes: members, rows and runs change, and nobody waits for ever."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("msgspec")
from peerbayes.peer.loopback import Loopback
from peerbayes.peer.runs import Runs
from shared.commands import HANG
from shared.runs_of_folders import some_rows, terms_of

ROOT = Path(__file__).parents[2]
CONSENT = 'label = "y"\ncolumns = ["a", "b"]\n'


@pytest.mark.long
def test_five_sites_do_three_runs_while_members_and_rows_change(tmp_path):
    """The third run equals a fresh network on its rows to 1e-6 and takes at most half the rounds; no new key."""
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "runs.py", "--json"],
        capture_output=True,
        text=True,
        timeout=4 * HANG,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout)
    print(figures)
    assert figures["difference"] <= 1e-6
    assert 2 * figures["rounds"][2] <= figures["fresh"] < 400, "both ended by themselves"
    assert figures["same_keys"] and figures["same_processes"]
    assert figures["revoked_exit"] == 2, "the revoked site is told, and ends"


@pytest.mark.links
@pytest.mark.long
def test_sites_that_are_killed_at_any_moment_do_all_their_runs(tmp_path):
    """kill -9 of a random site at random moments: before, between and in the runs; each is started again."""
    rng, terms = random.Random(3), terms_of(rounds=25, features={"a": "continuous", "b": "continuous"})
    network = Loopback.create(tmp_path, terms, [some_rows(seed) for seed in range(3)], ((0, 1), (1, 2)))
    runs = {name: Runs(home.folder) for name, home in network.homes.items()}

    def states(number):
        return [
            each.entry(number).state if number in each.home.run_numbers() else "unknown"
            for each in runs.values()
        ]

    for home in network.homes.values():
        (home.folder / "consent.toml").write_text(CONSENT)
    try:
        for name in network.homes:
            network.start(name, command="serve")
        for number in (1, 2, 3):
            if number > 1:
                runs[rng.choice(list(runs))].propose(
                    terms_of(rounds=25 + number, features=terms.features).to_toml()
                )
            end, kills = time.monotonic() + HANG, 4
            while states(number) != ["done"] * 3:
                assert time.monotonic() < end, (number, states(number), _logs(network))
                time.sleep(rng.uniform(0.1, 3.0))
                if kills:
                    kills -= 1
                    victim = rng.choice(list(runs))
                    network.processes[victim].kill()
                    network.processes[victim].wait()
                    network.start(victim, command="serve")
        assert all(process.poll() is None for process in network.processes.values()), _logs(network)
        rounds = [[each.entry(number).round for each in runs.values()] for number in (1, 2, 3)]
        assert rounds == [[25] * 3, [27] * 3, [28] * 3]
    finally:
        network.stop()


def _logs(network):
    return {name: home.log_path.read_text()[-1500:] for name, home in network.homes.items()}
