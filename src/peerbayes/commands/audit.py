"""`peerbayes audit`: what neighbours could learn, in plain words.

Exit codes: 0 nothing alarming, 1 failed, 2 makes no sense, 3 something alarming.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from peerbayes.commands.shared import console, explained, known_format, print_table
from peerbayes.peers.errors import parts_needed

ALARMING = 3  # the exit code
SHOWN = 10  # peers that are shown one by one
ATTACKED = 3  # peers of a simulation that --attack attacks


def audit(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="A saved run, a peer's home or a network's folder.")
    ],
    data: Annotated[
        Path | None,
        typer.Option(help="The TOML file that the run was made from: its rows tell class counts."),
    ] = None,
    attack: Annotated[
        bool, typer.Option("--attack", help="Attack the worst peers, or one's own rows, here and now.")
    ] = False,
    seconds: Annotated[float, typer.Option(help="Time for each passive attack of --attack.")] = 10.0,
    form: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """What a neighbour could learn of each peer; the worst first. The exit code is 3 where something is alarming."""
    with explained(), parts_needed():
        from peerbayes.audit import folders

        known_format(form)
        rows = _rows(data)
        found = folders.of(folder, None if rows is None else rows[1])
        attacks = _attacks(folder, found, rows, seconds) if attack else []
    if form == "json":
        print(json.dumps({**found.to_plain(), "attacks": attacks}, indent=2))
    else:
        _tell(found, attacks)
    if found.alarming:
        sys.exit(ALARMING)


def _rows(data: Path | None) -> tuple[Any, Any] | None:
    if data is None:
        return None
    from peerbayes import config

    return config.read(data).load()


def _attacks(folder: Path, found: Any, rows: Any, seconds: float) -> list[dict[str, Any]]:
    """Both attacks on up to three leaves of a run, or on the rows of a peer's home."""
    from peerbayes.audit import trials
    from peerbayes.runs import RUN_FILE

    if (folder / RUN_FILE).is_file():
        if rows is None:
            raise ValueError(
                "--attack needs the rows of the run; give --data FILE, the TOML file that it was made from"
            )
        leaves = [int(exposure.name.split()[1]) for exposure in found.exposures if exposure.leaf][:ATTACKED]
        return [trials.on_run(folder, rows[0], rows[1], peer, seconds) for peer in leaves]
    return [trials.on_home(folder, seconds)]


def _tell(found: Any, attacks: list[dict[str, Any]]) -> None:
    from peerbayes.audit.judgement import ADVICE

    say = lambda text="": console.print(text, markup=False, highlight=False, soft_wrap=True)  # noqa: E731
    say(found.what)
    for note in found.notes:
        say(f"note: {note}")
    shown = found.exposures[:SHOWN]
    print_table(
        ("peer", "rows", "neighbours", "rows had by listening", "by lying", "membership AUC", ""),
        [
            (e.name, "?" if e.rows is None else f"{e.rows:,}", e.neighbours, _share(e.listening), _share(e.lying),
             "?" if e.membership is None else f"{e.membership:.2f}", "ALARMING" if e.alarming else "")
            for e in shown
        ],
    )  # fmt: skip
    if len(found.exposures) > len(shown):
        leaves = sum(e.leaf for e in found.exposures)
        say(
            f"… and {len(found.exposures) - len(shown)} more; in all {found.alarming} alarming, {leaves} with one "
            "neighbour"
        )
    for e in shown:
        say(f"\n{e.name}")
        for sentence in (*e.alarms(), *e.notes()):
            say(f"  - {sentence}")
    for line in attacks:
        say(
            f"\nattacked {line['peer']} ({line['rows']} rows): by listening {_share(line['listening'])} of its rows, "
            f"by lying {_share(line['lying'])} in {line['rounds']} rounds"
        )
    say(f"\n{found.verdict()}")
    if found.alarming:
        say("What helps:")
        for advice in ADVICE:
            say(f"  - {advice}")
    say(
        "Shares and AUCs are the highest of three datasets (benchmarks/audit.py). One neighbour of several learns "
        "less than all together. See docs/protection.md"
    )


def _share(share: float | None) -> str:
    return "?" if share is None else f"{share:.0%}"
