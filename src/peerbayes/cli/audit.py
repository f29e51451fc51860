"""`peerbayes audit` and `peerbayes privacy`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from peerbayes.cli import Format, argument, console, option, print_table, print_text, split
from peerbayes.errors import parts_needed
from peerbayes.learning.shared_settings import FAMILY, LR, ROUNDS
from peerbayes.privacy.accounting import Privacy
from peerbayes.privacy.scheme import Plan
from peerbayes.privacy.scheme import plan as planned

# --- `peerbayes privacy`

app = typer.Typer(help="Plan differential privacy.", no_args_is_help=True, add_completion=False)


@app.callback()
def main() -> None:
    """Plan differential privacy."""


@app.command()
def plan(
    rows: Annotated[int, option("Number of rows per peer.")],
    peers: Annotated[int, option("Number of peers.")],
    classes: Annotated[int, option("Number of classes.")] = 2,
    continuous: Annotated[int, option("Number of continuous columns.")] = 0,
    discrete: Annotated[str, option("Numbers of categories of the discrete columns: 2,5,3.")] = "",
    epsilon: Annotated[
        float, option("The privacy budget for all rounds; smaller is safer.")
    ] = Privacy.epsilon,
    delta: Annotated[float, option("The probability that the bound fails.")] = Privacy.delta,
    rounds: Annotated[int, option("Number of rounds.")] = ROUNDS.default,
    lr: Annotated[float, option("The learning rate.")] = LR.default,
    clip: Annotated[
        str, option("How far a row may move a release, relative to a typical row, or auto.")
    ] = Privacy.clip,  # type: ignore[assignment]
    edge_noise: Annotated[
        float, option("Noise shared by neighbours, in addition to their own; 0: none.")
    ] = Privacy.edge_noise,
    colluders: Annotated[int, option("Number of peers that may collude.")] = Privacy.colluders,
    topology: Annotated[str, option("The network's topology; only edge noise depends on it.")] = "regular-6",
    family: Annotated[str, option("naive-bayes, qda or lda.")] = FAMILY.default,
    form: Format = "table",
) -> None:
    """Estimate the cost of privacy: the noise, the expected rise in error, and whether collaboration still pays off."""
    sizes = _parsed(
        "--discrete",
        discrete,
        lambda text: tuple(map(int, split(text))),
        "numbers of categories such as 2,5,3",
    )
    clipping = clip if clip == "auto" else _parsed("--clip", clip, float, "a number, or auto")
    result = planned(
        rows, peers, classes, continuous, sizes, epsilon, delta, rounds, lr, clipping, Privacy.bound, edge_noise,
        colluders, topology, family,
    )  # fmt: skip
    if form == "json":
        print(json.dumps(result.to_dict(), indent=2))
    else:
        print_plan(result)


def print_plan(plan: Plan) -> None:
    """Print a plan as a table and two sentences."""
    print_table(
        ("", "", ""),
        [
            ("noise per release", f"σ = {plan.sigma:.4g}", f"{plan.multiplier:.4g} times the effect of one row"),
            ("spent after all rounds", f"ε = {plan.epsilon:.4g}", f"δ = {plan.delta:.3g}, μ = {plan.mu:.4g}"),
            ("noise on a class mean", f"ρ = {plan.rho:.3g}", f"a peer alone has {plan.alone:.3g}"),
            ("membership inference", f"AUC ≤ {plan.membership:.3f}", "for any test of one row; 0.5 is guessing"),
        ],
    )  # fmt: skip
    pays = {"yes": "pays off", "about even": "is about as good as working alone", "no": "does not pay off"}
    console.print(
        f"\nThe error will rise {plan.rise}. Collaboration {pays[plan.pays]}.\nA rule of thumb, from naive Bayes on "
        "the paper's datasets; a simulation with similar rows is more accurate.",
        highlight=False,
    )


def _parsed(name: str, text: str, parse: Callable[[str], Any], expected: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise ValueError(f"{name} is {text!r}; expected {expected}") from error


# --- `peerbayes audit`: what neighbours could learn about each peer
# Exit codes: 0 nothing alarming, 1 failure, 2 invalid request, 3 something alarming.

EXIT_ALARMING = 3  # exit code
SHOWN = 10  # peers listed one by one
ATTACKED = 3  # peers of a simulation attacked by --attack


@parts_needed()
def audit(
    folder: Annotated[
        Path, argument("The folder of a saved run, of a peer or of a network.", metavar="RUN_DIR")
    ],
    data: Annotated[
        Path | None, option("The simulation's TOML file, to read rows and class counts from.")
    ] = None,
    attack: Annotated[
        bool, option("Run attacks on the most exposed peers of a run, or on a peer's own rows.", "--attack")
    ] = False,
    seconds: Annotated[float, option("Seconds for each passive attack of --attack.")] = 10.0,
    form: Format = "table",
) -> None:
    """Show what neighbours could learn about each peer, the most exposed first; exit code 3 if anything is alarming."""
    from peerbayes.audit import folders
    from peerbayes.simulation import config

    rows = None if data is None else config.read(data).load()
    audited = folders.of(folder, None if rows is None else rows[1])
    attacks = _attacks(folder, audited, rows, seconds) if attack else []
    if form == "json":
        print(json.dumps({**audited.to_plain(), "attacks": attacks}, indent=2))
    else:
        _print(audited, attacks)
    if audited.alarming:
        sys.exit(EXIT_ALARMING)


def _attacks(folder: Path, audited: Any, rows: Any, seconds: float) -> list[dict[str, Any]]:
    """Return the results of both attacks on up to three leaves of a run, or on the rows of a peer's home."""
    from peerbayes.audit import folders as trials
    from peerbayes.simulation.result import RUN_FILE

    if (folder / RUN_FILE).is_file():
        if rows is None:
            raise ValueError(
                "--attack needs the rows of the run; give --data FILE, the TOML file of the simulation"
            )
        leaves = [int(exposure.name.split()[1]) for exposure in audited.exposures if exposure.leaf][:ATTACKED]
        return [trials.on_run(folder, rows[0], rows[1], peer, seconds) for peer in leaves]
    return [trials.on_home(folder, seconds)]


def _print(audited: Any, attacks: list[dict[str, Any]]) -> None:
    from peerbayes.privacy.exposure import ADVICE

    print_text(audited.what)
    for note in audited.notes:
        print_text(f"note: {note}")
    shown = audited.exposures[:SHOWN]
    print_table(
        ("peer", "rows", "neighbours", "rows found (passive)", "rows found (active)", "membership AUC", ""),
        [_row(exposure) for exposure in shown],
    )
    if len(audited.exposures) > len(shown):
        leaves = sum(exposure.leaf for exposure in audited.exposures)
        print_text(
            f"… and {len(audited.exposures) - len(shown)} more; in total {audited.alarming} alarming, {leaves} with "
            "one neighbour"
        )
    for exposure in shown:
        print_text(f"\n{exposure.name}")
        for sentence in (*exposure.alarms(), *exposure.notes()):
            print_text(f"  - {sentence}")
    for attack in attacks:
        print_text(
            f"\nattacked {attack['peer']} ({attack['rows']} rows): a passive attack found "
            f"{_share(attack['listening'])} of its rows, an active attack {_share(attack['lying'])} "
            f"in {attack['rounds']} rounds"
        )
    print_text(f"\n{audited.verdict()}")
    if audited.alarming:
        print_text("What helps:")
        for advice in ADVICE:
            print_text(f"  - {advice}")
    print_text(
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
