"""A dashboard next to the process that it shows: started and ended together with it."""

from __future__ import annotations

import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from peerbayes.errors import AddressError, WebError, web_parts_needed
from peerbayes.report.dashboard.access import Address

START_TIMEOUT = 120.0  # seconds, enough on a busy machine
STOP_TIMEOUT = 10.0  # seconds


@dataclass(frozen=True)
class Launched:
    """A dashboard's process. It ends with this process, even when this one is killed: its standard input then ends."""

    url: str
    process: subprocess.Popen[bytes]


@contextmanager
def launch(folder: Path, address: str | None = None) -> Iterator[Launched]:
    """Start a dashboard of a folder, on this machine only, wait until it responds, and end it afterwards."""
    if not Address.parse(address).loopback:
        raise AddressError(
            f"the address is {address}; expected one of this machine. For access from other machines, run "
            f"`peerbayes watch {folder} --address {address}`, which requires a token"
        )
    with web_parts_needed():
        for package in ("starlette", "uvicorn", "plotly"):
            if find_spec(package) is None:
                raise ModuleNotFoundError(name=package)
    command = [sys.executable, "-m", "peerbayes", "watch", str(folder), "--attached"]
    process = subprocess.Popen(
        command + ([] if address is None else ["--address", address]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C goes to the parent process only
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        readable, _, _ = select.select([process.stdout], [], [], START_TIMEOUT)
        url = process.stdout.readline().decode().strip() if readable else ""
        if not url:
            raise WebError(
                f"the dashboard of {folder} did not start; run `peerbayes watch {folder}` to see why"
            )
        yield Launched(url, process)
    finally:
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
