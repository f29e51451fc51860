"""`peerbayes audit`: what neighbours could learn about each peer.

Exit codes: 0 nothing alarming, 1 failure, 2 invalid request, 3 something alarming.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from peerbayes.commands.shared import check_format, console, exit_on_error, print_table
from peerbayes.peers.errors import parts_needed

EXIT_ALARMING = 3  # exit code
SHOWN = 10  # peers listed one by one
ATTACKED = 3  # peers of a simulation attacked by --attack


def audit(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN_DIR", help="A saved run, a peer's home or a network's folder.")
    ],
    data: Annotated[
        Path | None,
        typer.Option(help="The TOML file of the simulation, from which rows and class counts are read."),
    ] = None,
    attack: Annotated[
        bool,
        typer.Option(
            "--attack", help="Run attacks on the most exposed peers of a run, or on a peer's own rows."
        ),
    ] = False,
    seconds: Annotated[float, typer.Option(help="Seconds for each passive attack of --attack.")] = 10.0,
    form: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """Show what neighbours could learn about each peer, the most exposed first; exit code 3 if anything is alarming."""
    with exit_on_error(), parts_needed():
        from peerbayes.audit import folders

        check_format(form)
        rows = _rows(data)
        audited = folders.of(folder, None if rows is None else rows[1])
        attacks = _attacks(folder, audited, rows, seconds) if attack else []
    if form == "json":
        print(json.dumps({**audited.to_plain(), "attacks": attacks}, indent=2))
    else:
        _print(audited, attacks)
    if audited.alarming:
        sys.exit(EXIT_ALARMING)


def _rows(data: Path | None) -> tuple[Any, Any] | None:
    if data is None:
        return None
    from peerbayes import config

    return config.read(data).load()


def _attacks(folder: Path, audited: Any, rows: Any, seconds: float) -> list[dict[str, Any]]:
    """Return the results of both attacks on up to three leaves of a run, or on the rows of a peer's home."""
    from peerbayes.audit import trials
    from peerbayes.runs import RUN_FILE

    if (folder / RUN_FILE).is_file():
        if rows is None:
            raise ValueError(
                "--attack needs the rows of the run; give --data FILE, the TOML file of the simulation"
            )
        leaves = [int(exposure.name.split()[1]) for exposure in audited.exposures if exposure.leaf][:ATTACKED]
        return [trials.on_run(folder, rows[0], rows[1], peer, seconds) for peer in leaves]
    return [trials.on_home(folder, seconds)]


def _print(audited: Any, attacks: list[dict[str, Any]]) -> None:
    from peerbayes.audit.judgement import ADVICE

    show = lambda text="": console.print(text, markup=False, highlight=False, soft_wrap=True)  # noqa: E731
    show(audited.what)
    for note in audited.notes:
        show(f"note: {note}")
    shown = audited.exposures[:SHOWN]
    print_table(
        ("peer", "rows", "neighbours", "rows found (passive)", "rows found (active)", "membership AUC", ""),
        [_row(exposure) for exposure in shown],
    )
    if len(audited.exposures) > len(shown):
        leaves = sum(exposure.leaf for exposure in audited.exposures)
        show(
            f"… and {len(audited.exposures) - len(shown)} more; in total {audited.alarming} alarming, {leaves} with "
            "one neighbour"
        )
    for exposure in shown:
        show(f"\n{exposure.name}")
        for sentence in (*exposure.alarms(), *exposure.notes()):
            show(f"  - {sentence}")
    for attack in attacks:
        show(
            f"\nattacked {attack['peer']} ({attack['rows']} rows): a passive attack found "
            f"{_share(attack['listening'])} of its rows, an active attack {_share(attack['lying'])} "
            f"in {attack['rounds']} rounds"
        )
    show(f"\n{audited.verdict()}")
    if audited.alarming:
        show("What helps:")
        for advice in ADVICE:
            show(f"  - {advice}")
    show(
        "Shares and AUCs are the highest measured on three datasets (benchmarks/audit.py). A single neighbour learns "
        "less than all neighbours together. See docs/protection.md"
    )


def _row(exposure: Any) -> tuple[Any, ...]:
    return (
        exposure.name,
        "?" if exposure.rows is None else f"{exposure.rows:,}",
        exposure.neighbours,
        _share(exposure.listening),
        _share(exposure.lying),
        "?" if exposure.membership is None else f"{exposure.membership:.2f}",
        "ALARMING" if exposure.alarming else "",
    )


def _share(share: float | None) -> str:
    return "?" if share is None else f"{share:.0%}"
