"""The command line: parse, call, print. Exit codes: 0 done, 1 what failed, 2 a request that makes no sense."""

from __future__ import annotations

from typing import Annotated

import typer

from peerbayes import __version__
from peerbayes.commands import datasets, reproduce, simulation

app = typer.Typer(
    help="Classifiers learned together by data owners whose rows never leave their machines.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, typer.Option("--version", help="Say the version and stop.")] = False,
) -> None:
    if version:
        print(__version__)
        raise typer.Exit


app.command()(simulation.demo)
app.command()(simulation.simulate)
app.command()(reproduce.reproduce)
app.add_typer(datasets.app, name="datasets")
