"""`peerbayes privacy`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from peerbayes.commands.shared import console, explained, known_format, print_table
from peerbayes.privacy.plan import Plan
from peerbayes.privacy.plan import plan as planned

app = typer.Typer(help="Differential privacy: what it costs.", no_args_is_help=True, add_completion=False)


@app.callback()
def main() -> None:
    """Differential privacy: what it costs."""


@app.command()
def plan(
    rows: Annotated[int, typer.Option(help="Rows of each peer.")],
    peers: Annotated[int, typer.Option(help="How many peers.")],
    classes: Annotated[int, typer.Option(help="How many classes the label has.")] = 2,
    continuous: Annotated[int, typer.Option(help="How many continuous columns.")] = 0,
    discrete: Annotated[str, typer.Option(help="How many categories each discrete column has: 2,5,3.")] = "",
    epsilon: Annotated[float, typer.Option(help="The promise, over all rounds; smaller is safer.")] = 4.0,
    delta: Annotated[float, typer.Option(help="The probability with which it may fail.")] = 1e-5,
    rounds: Annotated[int, typer.Option(help="Rounds of messages.")] = 64,
    lr: Annotated[float, typer.Option(help="The learning rate.")] = 0.05,
    clip: Annotated[
        str, typer.Option(help="How far a row may move a release, beside a typical row; auto chooses.")
    ] = "auto",
    edge_noise: Annotated[
        float, typer.Option(help="Noise shared by neighbours, beside each one's own; 0: none.")
    ] = 0.0,
    colluders: Annotated[int, typer.Option(help="How many peers may put together what they know.")] = 1,
    topology: Annotated[
        str, typer.Option(help="Who hears whom; only edge noise depends on it.")
    ] = "regular-6",
    family: Annotated[str, typer.Option(help="naive-bayes, qda or lda.")] = "naive-bayes",
    form: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """What privacy will cost: the noise, the expected rise in error, and whether working together still pays."""
    with explained():
        known_format(form)
        found = planned(
            rows, peers, classes, continuous, _sizes(discrete), epsilon, delta, rounds, lr,
            clip if clip == "auto" else _number(clip), 3.0, edge_noise, colluders, topology, family,
        )  # fmt: skip
        if form == "json":
            print(json.dumps(found.to_dict(), indent=2))
            return
        tell(found)


def tell(found: Plan) -> None:
    """A plan as a table and two sentences."""
    print_table(
        ("", "", ""),
        [
            ("noise of a release", f"σ = {found.sigma:.4g}", f"{found.multiplier:.4g} times what one row moves it by"),
            ("spent after all rounds", f"ε = {found.epsilon:.4g}", f"δ = {found.delta:.3g}, μ = {found.mu:.4g}"),
            ("noise on a class mean", f"ρ = {found.rho:.3g}", f"alone, a peer's rows leave {found.alone:.3g}"),
            ("who took part", f"AUC ≤ {found.membership:.3f}", "of any test for one row; 0.5 is guessing"),
        ],
    )  # fmt: skip
    pays = {"yes": "pays", "about even": "is about as good as working alone", "no": "does not pay"}[
        found.pays
    ]
    console.print(f"\nThe error will rise {found.rise}. Working together {pays}.", highlight=False)
    console.print(
        "A rule of thumb, from naive Bayes on the paper's datasets; a simulation with rows like yours says it better.",
        highlight=False,
    )


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise ValueError(f"--discrete is {text!r}; expected numbers of categories such as 2,5,3") from error


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(f"--clip is {text!r}; expected a number, or auto") from error
