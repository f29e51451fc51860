"""The pages on real peers: the commands of docs/hospitals.md are run, and docs/wire.md and the tables are complete."""

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("msgspec")
pytest.importorskip("cryptography")
import pandas as pd

import peerbayes as pb
from peerbayes.learning.robust import invariants
from peerbayes.peer.loopback import free_ports
from peerbayes.peer.protocol import failures, wire
from shared.commands import HANG

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "hospitals.md").read_text(encoding="utf-8")
WIRE = (DOCS / "wire.md").read_text(encoding="utf-8")
HOSPITALS = ("hospital-a", "hospital-b", "hospital-c")
END = "— end of block —"

# Machines that share no disk: a file travels when the page says scp.
SCP = """#!/bin/sh
case "$2" in
  hospital-?.example:*) host=${2%%.example:*}; cp "$1" "$MACHINES/$host/${2#*:}" ;;
  *) echo "scp to $2?" >&2; exit 1 ;;
esac
"""


class Machine:
    """A folder and a shell in it, in which a reader types one block after the other."""

    def __init__(self, folder, programs):
        folder.mkdir()
        self.name, self.folder = folder.name, folder
        path = os.pathsep.join((str(programs), str(Path(sys.executable).parent), os.environ["PATH"]))
        self.shell = subprocess.Popen(
            ["bash", "--norc"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
            env={**os.environ, "PATH": path, "MACHINES": str(folder.parent), "OPENBLAS_NUM_THREADS": "1"},
        )  # fmt: skip
        self.type("trap 'echo \"FAILED $?: $BASH_COMMAND\"' ERR; set -o pipefail")

    def type(self, block):
        """Run a block; its output, if no command in it failed."""
        self.shell.stdin.write(f"{block}\necho '{END}'\n")
        self.shell.stdin.flush()
        shown = ""
        for line in self.shell.stdout:
            if line.strip() == END:
                break
            shown += line
        assert "FAILED" not in shown and self.shell.poll() is None, f"{self.name}:\n{block}\n{shown}"
        return shown

    def end(self):
        os.killpg(self.shell.pid, signal.SIGKILL)  # the shell and the peer in its background
        self.shell.wait()
        self.shell.stdin.close()
        self.shell.stdout.close()


@pytest.fixture
def machines(tmp_path):
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "scp").write_text(SCP)
    (tmp_path / "programs" / "scp").chmod(0o755)
    (tmp_path / "machines").mkdir()
    found = {}
    try:
        for name in HOSPITALS:
            found[name] = Machine(tmp_path / "machines" / name, tmp_path / "programs")
        yield found
    finally:
        for machine in found.values():
            machine.end()


def free_addresses():
    """127.0.0.1 and a port for each hospital."""
    ports = free_ports(len(HOSPITALS))
    return {f"{name}.example:7443": f"127.0.0.1:{port}" for name, port in zip(HOSPITALS, ports, strict=True)}


def blocks():
    """(where, block) of every shell block but the installation: one hospital, or all."""
    for block in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL):
        where = re.match(r"# at (hospital-[abc]|every hospital)\b", block)
        assert where, f"the block does not say where:\n{block}"
        if "pip install" not in block:
            yield where[1], block


@pytest.mark.long
def test_the_page_takes_three_hospitals_to_a_model(machines):
    addresses = free_addresses()
    code = re.search(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    (machines["hospital-a"].folder / "split.py").write_text(code[1])
    shown = dict.fromkeys(HOSPITALS, "")

    def typed(name, block):
        for named, address in addresses.items():
            block = block.replace(named, address)
        shown[name] += machines[name].type(block)

    signal.signal(signal.SIGALRM, lambda *_: pytest.fail(f"a block takes longer than {HANG} s: {shown}"))
    try:
        with ThreadPoolExecutor(len(HOSPITALS)) as pool:
            for where, block in blocks():
                signal.alarm(int(HANG))
                if where == "every hospital":
                    texts = [block.replace("hospital-b", name) for name in HOSPITALS]
                    list(pool.map(typed, HOSPITALS, texts))
                else:
                    typed(where, block)
    finally:
        signal.alarm(0)
    for name, told in shown.items():
        assert f"{name} in breast-cancer: done, round 64 of 64" in told, told
    fingerprints = {re.search(r"fingerprint with .*: ([0-9a-f]{64})", told)[1] for told in shown.values()}
    assert len(fingerprints) == 1
    assert "whole, up to" in shown["hospital-a"] and "hospital-c is revoked" in shown["hospital-a"]
    assert "not running, round 0 of 64" not in shown["hospital-b"]
    assert float(re.search(r"error rate ([\d.]+)", shown["hospital-b"])[1]) < 0.08
    new = pd.read_csv(machines["hospital-a"].folder / "new.csv")
    answers = pd.read_csv(machines["hospital-b"].folder / "predicted.csv")
    assert len(answers) == len(new) == 119
    X, y = new.drop(columns="diagnosis"), new["diagnosis"]
    for machine in machines.values():
        own = pd.read_csv(machine.folder / "rows.csv")
        assert len(own) == 150
        model = pb.load(machine.folder / "peer" / "model.peerbayes")
        assert 1 - model.score(X, y) < 0.08


def test_a_command_of_the_page_is_no_other_than_those_there_are():
    """Also those in the text: `peerbayes peer status` and the like."""
    for group, command in re.findall(r"peerbayes (network|peer) ([a-z]+)", PAGE):
        assert command in {
            "network": ("new", "invite", "close", "revoke", "deputy", "renew", "inspect"),
            "peer": ("request", "join", "check", "run", "serve", "status", "renew", "backup", "restore", "leave"),
        }[group]  # fmt: skip


def reasons():
    """Every named reason of a refusal, from the code."""
    found = {reason for _, reason in failures.REASONS} | {"other certificate", "no peer", "nothing sent"}
    found |= set(invariants.REASONS)
    for path in (Path(wire.__file__).parent).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "RefusedMessage":
                assert isinstance(node.args[0], ast.Constant), ast.unparse(node)
                found.add(node.args[0].value)
    return sorted(found)


@pytest.mark.parametrize("message", [wire.Request, wire.Reply])
def test_every_field_is_in_the_wire_format(message):
    section = WIRE.partition(f"## {message.__name__}\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE) == list(
        message.__struct_encode_fields__
    )


def test_limits_in_the_wire_format():
    assert f"at most {wire.LARGEST_REQUEST >> 10} KiB" in WIRE
    assert f"of this protocol: {wire.VERSION}" in WIRE
    for choices in (wire.Kind, wire.Status):
        for choice in choices.__args__:
            assert f"`{choice}`" in WIRE, choice


@pytest.mark.parametrize("reason", reasons())
def test_every_refusal_is_explained_twice(reason):
    assert f"| {reason} |" in WIRE
    cells = re.findall(r"^\| ([^|]*) \|", PAGE, flags=re.MULTILINE)
    assert any(reason in cell.split("; ") for cell in cells), reason


def test_the_unit_is_one(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    unit = (DOCS / "deploy" / "peerbayes.service").read_text(encoding="utf-8")
    assert "\nNoNewPrivileges=yes\n" in unit and "\nRestart=on-failure\n" in unit
    there = tmp_path / "peerbayes.service"
    there.write_text(unit.replace("/opt/peerbayes/bin/peerbayes", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", str(there)], capture_output=True, text=True)
    ours = [line for line in done.stderr.splitlines() if "peerbayes.service" in line]
    assert not ours, done.stderr
