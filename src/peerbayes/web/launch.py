"""A dashboard beside the process that is watched: started with it, and gone with it."""

from __future__ import annotations

import select
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from peerbayes.web.address import Address
from peerbayes.web.errors import AddressError, WebError, web_parts_needed

PATIENCE = 120.0  # seconds to start on a busy machine
TO_END = 10.0  # seconds to end


@dataclass
class Launched:
    """A dashboard's process. It ends with this one, even when this one is killed: then its standard input ends."""

    url: str
    process: subprocess.Popen[bytes]

    def stop(self) -> None:
        """End it."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self.process.wait(TO_END)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def launch(folder: Path, address: str | None = None) -> Launched:
    """Start a dashboard of a folder, on this machine only; it answers when this returns."""
    if not Address.parse(address).loopback:
        raise AddressError(
            f"the address is {address}; expected one of this machine. For others to see it, run "
            f"`peerbayes watch {folder} --address {address}`, which asks them for a token"
        )
    with web_parts_needed():
        for part in ("starlette", "uvicorn", "plotly"):
            if find_spec(part) is None:
                raise ModuleNotFoundError(name=part)
    words = [sys.executable, "-m", "peerbayes", "watch", str(folder), "--attached"]
    process = subprocess.Popen(
        words + ([] if address is None else ["--address", address]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for whoever started it
    )
    launched = Launched("", process)
    assert process.stdout is not None
    try:
        told, _, _ = select.select([process.stdout], [], [], PATIENCE)
        launched.url = process.stdout.readline().decode().strip() if told else ""
        if not launched.url:
            raise WebError(f"the dashboard of {folder} did not start; `peerbayes watch {folder}` says why")
    except BaseException:
        launched.stop()
        raise
    return launched
