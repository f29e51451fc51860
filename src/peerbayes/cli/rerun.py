"""`peerbayes rerun`: make a saved run again, and compare the two."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

from peerbayes.cli import Format, Overwrite, argument, option, plain_warnings, print_text

DIFFERS = 3  # exit code


def rerun(
    folder: Annotated[Path, argument("The folder of a run, written by `simulate --out`.", metavar="RUN_DIR")],
    data: Annotated[
        str | None, option("A file, or a database's URL, with the rows; default: where they were from.")
    ] = None,
    label: Annotated[str | None, option("The column of --data to predict; default: as recorded.")] = None,
    out: Annotated[Path | None, option("Save the new run in this folder.")] = None,
    overwrite: Overwrite = False,
    form: Format = "table",
) -> None:
    """Run a saved simulation again, from the same rows, and compare the digests of both.

    Exit code 0: the same digest; 3: another one, and it says in what the runs differ; 2: the rows are not those that
    the run was made with.
    """
    from peerbayes.simulation.repetition import differences, repeated
    from peerbayes.simulation.result import Run, refuse_existing

    if label is not None and data is None:
        raise ValueError("--label names a column of --data; expected --data FILE too")
    if out is not None:
        refuse_existing(out, overwrite)
    run = Run.load(folder)
    entries = {name: value for name, value in (("file", data), ("label", label)) if value is not None}
    with plain_warnings():
        again = repeated(run, data=entries or None)
    if out is not None:
        again.save(out, overwrite=overwrite)
    sentences = differences(run, again)
    if form == "json":
        content: dict[str, Any] = {"same": not sentences, "digest": run.digest, "again": again.digest}
        print(json.dumps({**content, "differences": sentences}, indent=2))
    elif sentences:
        print_text(f"The runs differ: the digest was {run.digest}, and is {again.digest} now.")
        for sentence in sentences:
            print_text(f"  {sentence}")
    else:
        print_text(f"The same digest: {run.digest}")
    if sentences:
        sys.exit(DIFFERS)
