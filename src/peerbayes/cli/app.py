"""The command line: parse, call, print. Exit codes: 0 success, 1 failure, 2 an invalid request.

`audit` and `check` end with 3 where they find something alarming, `rerun` where a run differs from the one that was
saved.
"""

from __future__ import annotations

import sys
from importlib import import_module, metadata
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

from peerbayes.cli import exit_on_error

# Command: its module in `cli`, and its attribute there: a function, or an app with subcommands.
COMMANDS = {
    "demo": ("demo", "demo"),
    "simulate": ("simulate", "simulate"),
    "study": ("studies", "study"),
    "rerun": ("rerun", "rerun"),
    "watch": ("report", "watch"),
    "report": ("report", "report"),
    "audit": ("audit", "audit"),
    "check": ("data_check", "check"),
    "reproduce": ("reproduce", "reproduce"),
    "datasets": ("datasets", "app"),
    "network": ("network", "app"),
    "peer": ("peer", "app"),
    "run": ("network_runs", "app"),
    "relay": ("relay_server", "relay"),
    "privacy": ("audit", "app"),
    "model": ("model_history", "app"),
    "predict": ("model", "predict"),
    "explain": ("model", "explain"),
    "sample": ("model", "sample"),
}

# Commands by the names that they had before.
RENAMED = {"node": "peer"}


class Commands(TyperGroup):
    """Commands that are imported when they are called: a peer should not wait for scikit-learn.

    Here, and nowhere else, an error becomes a line on standard error and an exit code.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def invoke(self, ctx: Any) -> Any:
        with exit_on_error():
            return super().invoke(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in RENAMED:
            print(f"`peerbayes {cmd_name}` is called `peerbayes {RENAMED[cmd_name]}` now", file=sys.stderr)
            raise typer.Exit(2)
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name]
        target = getattr(import_module(f"peerbayes.cli.{module}"), attribute)
        if not isinstance(target, typer.Typer):
            function, target = target, typer.Typer(add_completion=False)
            target.command(cmd_name)(function)
        command = typer.main.get_command(target)
        command.name = cmd_name
        if not ctx.resilient_parsing:  # by which the reference reads help as it is written
            _escape_help(command)
        return command


def _escape_help(command: Any) -> None:
    """Let the help of a command, and of those below it, show brackets as they are: rich takes [data] for markup."""
    for part in (command, *command.params):
        if help_text := getattr(part, "help", None):
            part.help = escape(help_text)
    for below in getattr(command, "commands", {}).values():
        _escape_help(below)


app = typer.Typer(
    cls=Commands,
    help="Classifiers learned together by data owners whose rows never leave their machines.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback(invoke_without_command=True)
def main(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(metadata.version("peerbayes"))
        raise typer.Exit
