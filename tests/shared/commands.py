"""The command `peerbayes` for tests: in this process where its words and its exit code are tested, or as a process."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from peerbayes.cli.app import app

HANG = 900.0  # seconds: what takes longer hangs, also on a machine with much else to do

# Whether tests that draw at random draw as often as the documentation promises; else `--all` draws a fifth of it.
SOAK = bool(os.environ.get("PEERBAYES_SOAK"))


class Done(subprocess.CompletedProcess[str]):
    """What a command printed, and how it ended."""


def peerbayes(*words: Any, cwd: Path | str = ".", code: int | None = None) -> Done:
    """Run a command here: the same parser, output and exit code as a process, without starting an interpreter.

    Where `code` is given, the command must end with it.
    """
    arguments = [str(word) for word in words]
    with contextlib.chdir(cwd):
        result = CliRunner().invoke(app, arguments, prog_name="peerbayes")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception  # a process would show a traceback
    return _checked(Done(arguments, result.exit_code, result.stdout, result.stderr), code)


def peerbayes_process(*words: Any, code: int | None = None, **settings: Any) -> Done:
    """Run a command as a user does: a process of its own."""
    arguments = [sys.executable, "-m", "peerbayes", *(str(word) for word in words)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=HANG, **settings)
    return _checked(Done(arguments, done.returncode, done.stdout, done.stderr), code)


def _checked(done: Done, code: int | None) -> Done:
    assert code is None or done.returncode == code, done.stdout + done.stderr
    return done
