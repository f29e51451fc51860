"""`peerbayes privacy`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from peerbayes.commands.shared import check_format, console, exit_on_error, print_table
from peerbayes.privacy.plan import Plan
from peerbayes.privacy.plan import plan as planned

app = typer.Typer(help="Plan differential privacy.", no_args_is_help=True, add_completion=False)


@app.callback()
def main() -> None:
    """Plan differential privacy."""


@app.command()
def plan(
    rows: Annotated[int, typer.Option(help="Number of rows per peer.")],
    peers: Annotated[int, typer.Option(help="Number of peers.")],
    classes: Annotated[int, typer.Option(help="Number of classes.")] = 2,
    continuous: Annotated[int, typer.Option(help="Number of continuous columns.")] = 0,
    discrete: Annotated[str, typer.Option(help="Numbers of categories of the discrete columns: 2,5,3.")] = "",
    epsilon: Annotated[
        float, typer.Option(help="The privacy budget for all rounds; smaller is safer.")
    ] = 4.0,
    delta: Annotated[float, typer.Option(help="The probability that the bound fails.")] = 1e-5,
    rounds: Annotated[int, typer.Option(help="Number of rounds.")] = 64,
    lr: Annotated[float, typer.Option(help="The learning rate.")] = 0.05,
    clip: Annotated[
        str, typer.Option(help="How far a row may move a release, relative to a typical row, or auto.")
    ] = "auto",
    edge_noise: Annotated[
        float, typer.Option(help="Noise shared by neighbours, in addition to their own; 0: none.")
    ] = 0.0,
    colluders: Annotated[int, typer.Option(help="Number of peers that may collude.")] = 1,
    topology: Annotated[
        str, typer.Option(help="The network's topology; only edge noise depends on it.")
    ] = "regular-6",
    family: Annotated[str, typer.Option(help="naive-bayes, qda or lda.")] = "naive-bayes",
    form: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """Estimate the cost of privacy: the noise, the expected rise in error, and whether collaboration still pays off."""
    with exit_on_error():
        check_format(form)
        result = planned(
            rows, peers, classes, continuous, _sizes(discrete), epsilon, delta, rounds, lr,
            clip if clip == "auto" else _number(clip), 3.0, edge_noise, colluders, topology, family,
        )  # fmt: skip
        if form == "json":
            print(json.dumps(result.to_dict(), indent=2))
            return
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
    pays = {"yes": "pays off", "about even": "is about as good as working alone", "no": "does not pay off"}[
        plan.pays
    ]
    console.print(f"\nThe error will rise {plan.rise}. Collaboration {pays}.", highlight=False)
    console.print(
        "A rule of thumb, from naive Bayes on the paper's datasets; a simulation with similar rows is more accurate.",
        highlight=False,
    )


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in text.split(",") if number.strip())
    except ValueError as error:
        raise ValueError(f"--discrete is {text!r}; expected numbers of categories such as 2,5,3") from error


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(f"--clip is {text!r}; expected a number, or auto") from error
