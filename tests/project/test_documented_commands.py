"""Every command that the documentation shows is run, page by page, as a reader would type it.

What a test cannot run is in NOT_RUN with the reason; it is parsed, and a small twin may be run in its place. A page may
tell its reader to save a block as a file. A block that begins with "# in another terminal" goes on beside the others.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

import pytest

from peerbayes.peer import loopback
from shared.commands import HANG

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import reference  # noqa: E402

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = dict(reference.commands())
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]

# Pages whose commands another test runs.
ELSEWHERE = {"docs/hospitals.md": "tests/project/test_hospitals.py, on three machines"}

# What a command begins with: why no test runs it, and what is run in its place.
NOT_RUN = {
    "python3 -m venv .venv &&": ("installs; .ci/run runs it as it stands in the README", None),
    "pip install": ("installs; the extras are checked", None),
    "ruff check . && mypy && pytest": (".ci/run runs it", None),
    "pytest": ("the tests themselves; .ci/run calls them", None),
    "OPENBLAS_CORETYPE=": ("the tests on another processor's kernels", None),
    "python tools/mutants.py": ("runs the tests once for every mutant", None),
    "mkdocs build": ("tests/project/test_reference.py builds the site", None),
    "peerbayes reproduce 4 6 --datasets letter,adult": ("downloads datasets", None),
    "peerbayes reproduce 5 6 7 --datasets secondary": ("downloads datasets", None),
    "python benchmarks/last_cells.py": ("needs the paper's datasets; figures of an hour", None),
    "peerbayes reproduce all": (
        "needs all datasets, some of which must be imported by hand",
        "peerbayes reproduce all --datasets digits --columns rows20 --seeds 1 --engine local --format markdown",
    ),
    "peerbayes reproduce 8 --datasets digits --columns rows20 --seeds 2 --engine ray": (
        "starts Ray; tests/simulation/test_ray.py does, where it is installed. The page has the same locally",
        None,
    ),
    "python sharded.py ray": (
        "starts Ray; tests/simulation/test_shards.py does, where it is installed",
        "python sharded.py local",
    ),
    "ray start": ("several machines", None),
    "python sweep.py auto": ("joins a cluster of several machines", None),
    "python benchmarks/gpu.py": ("needs an NVIDIA GPU", None),
    "python benchmarks/relay_rules.py": ("needs the paper's datasets", None),
    "python benchmarks/missing.py": ("needs the paper's datasets", None),
    "peerbayes peer trace": ("needs a finished run; tests/cli/test_trace_command.py runs it", None),
    "peerbayes simulate run.toml --set message_loss": (
        "replays it; tests/cli/test_trace_command.py does",
        None,
    ),
    "python benchmarks/baselines.py": ("needs the paper's datasets", None),
    "python benchmarks/unseen.py": ("takes minutes", None),
    "ssh ": ("another machine", None),
    "peerbayes report runs/exact --figures": (
        "drawn by a browser; tests/report/test_report.py does, where there is one",
        "peerbayes report runs/exact",
    ),
}

# What must come out where a page says what does.
SHOWS = {
    "docs/tutorials/data-owner.md": (
        r"clinic-a in clinics: done, round 32 of 32",
        r"error rate 0\.0\d+ over 119 rows",
        r'"what": "round 32"',
    ),
    "docs/tutorials/researcher.md": (
        r"peers, exact",
        r"peers, relay",
        r"RC on the pooled rows",
        r"Watch it at http",
    ),
    "README.md": (
        r"5 processes on this machine",
        r"Largest difference from the simulator .*: \d\.\de-(0[9]|1\d)",
    ),
}

# Packages that commands need beyond the core: pages that call them are skipped where these are not installed.
NEEDS = {
    r"peerbayes (peer|network)|--peers": "msgspec",
    r"peerbayes report": "plotly",
    r"--watch|--dashboard|peerbayes watch": "starlette",
    r"on_a_gpu": "torch",
}


def blocks_of(page):
    """Shell blocks in order."""
    return re.findall(r"```(?:sh|console|bash)\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def lines_of(block):
    """Commands of a block, without comments and prompts; a backslash at the end joins lines."""
    for line in block.replace("\\\n", " ").splitlines():
        command = re.sub(r"(^|\s)#.*$", "", line.removeprefix("$ ")).strip()
        if command:
            yield command


def declared(command):
    return next((entry for entry in NOT_RUN if command.startswith(entry)), None)


WITH_COMMANDS = [page for page in PAGES if blocks_of(page)]
SHOWN = [(page, line) for page in WITH_COMMANDS for block in blocks_of(page) for line in lines_of(block)]


def name_of(path):
    return str(path.relative_to(ROOT))


# --- running -------------------------------------------------------------------------------------------------


def free_ports(text):
    """The page's own addresses on this machine, with ports that nobody listens on."""
    shown = sorted(set(re.findall(r"127\.0\.0\.1:(74\d\d)", text)))
    for port, free in zip(shown, loopback.free_ports(len(shown)), strict=True):
        text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{free}")
    return text


def typed(block, number):
    """A block as a script: what cannot be run is left out or replaced by its twin."""
    commands = []
    for command in lines_of(block):
        parts = (
            [part.strip() for part in command.split("&&")] if command.startswith("pip install") else [command]
        )
        for part in parts:
            entry = declared(part)
            commands.append(part if entry is None else NOT_RUN[entry][1])
    script = "\n".join(command for command in commands if command)
    if not block.startswith("# in another terminal"):
        return script
    log = f"terminal-{number}.log"
    return f"( {script} ) > {log} 2>&1 &\nuntil grep -q . {log}; do kill -0 $! && sleep 0.1; done"


@pytest.mark.long
@pytest.mark.parametrize(
    "page", [page for page in WITH_COMMANDS if name_of(page) not in ELSEWHERE], ids=name_of
)
def test_the_commands_of_a_page_run(page, tmp_path):
    text = page.read_text(encoding="utf-8")
    blocks = [typed(block, number) for number, block in enumerate(blocks_of(page))]
    script = free_ports("\n".join(block for block in blocks if block))
    if not script.strip():
        return
    for pattern, package in NEEDS.items():
        if re.search(pattern, script) and find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    for name, content in re.findall(
        r"[Ss]ave\s+this\s+as\s+`([\w.-]+)`[^`]*?\n\n```\w+\n(.*?)```", text, flags=re.DOTALL
    ):
        (tmp_path / name).write_text(content, encoding="utf-8")
    trap = "trap 'echo \"FAILED $?: $BASH_COMMAND\" >&2' ERR"
    (tmp_path / "typed.sh").write_text(
        f"set -eo pipefail\n{trap}\n{script}\necho all typed\n", encoding="utf-8"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PEERBAYES_")}
    environment = {
        **kept,
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        "PEERBAYES_CACHE": str(tmp_path / "cache"),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    with (tmp_path / "shown.log").open("w+") as shown:
        shell = subprocess.Popen(
            ["bash", "typed.sh"], cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL, stdout=shown,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            assert over(shell), f"not done after {HANG} s:\n{(tmp_path / 'shown.log').read_text()[-4000:]}"
            told = (tmp_path / "shown.log").read_text(encoding="utf-8")
            assert "FAILED" not in told and told.endswith("all typed\n"), told[-4000:]
            for pattern in SHOWS.get(name_of(page), ()):
                assert re.search(pattern, told), pattern
            for log in tmp_path.glob("terminal-*.log"):
                (url,) = re.findall(r"http://127\.0\.0\.1:\d+/\S*", log.read_text(encoding="utf-8"))
                with urlopen(url, timeout=HANG) as answer:
                    assert answer.status == 200
        finally:
            os.killpg(shell.pid, signal.SIGKILL)  # the shell and what is in its background
            shell.wait()


def over(shell):
    """Whether a shell ends in time. It is not waited for, so that the number of its group stays taken."""
    until = time.monotonic() + HANG
    while time.monotonic() < until:
        if os.waitid(os.P_PID, shell.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return True
        time.sleep(0.05)
    return False


# --- what is not run -------------------------------------------------------------------------------------------


def parse(words):
    """Parse a command line as the program would, without doing what it says."""
    command, name, rest = COMMANDS["peerbayes"], "peerbayes", list(words)
    while hasattr(command, "list_commands") and rest and not rest[0].startswith("-"):
        name = f"{name} {rest.pop(0)}"
        assert name in COMMANDS, f"there is no command {name}"
        command = COMMANDS[name]
    command.make_context(name, rest).close()


@pytest.mark.parametrize(
    ("page", "line"), SHOWN, ids=lambda value: value[:60] if isinstance(value, str) else ""
)
def test_a_command_makes_sense(page, line):
    for part in re.split(r"\s*(?:&&|;|\||&)\s*", re.sub(r"<<'?\w+'?|\d?>>?\s*(?:&\d|\S+)", "", line)):
        words = [word for word in shlex.split(part) if not re.fullmatch(r"[A-Z_]+=\S*", word)]
        if not words or "…" in part:
            continue
        program = words[0].rpartition("/")[2]
        if program == "peerbayes":
            parse(words[1:])
        elif program == "pip" and words[1] == "install":
            for extras in re.findall(r"\[([\w,]+)\]", part):
                assert set(extras.split(",")) <= set(EXTRAS), part
        elif program in ("python", "python3") and words[1:] and words[1].startswith("benchmarks/"):
            source = (ROOT / words[1]).read_text(encoding="utf-8")
            assert all(f'"{word}"' in source for word in words[2:] if word.startswith("--")), part


def test_nothing_is_declared_that_no_page_shows():
    lines = [part.strip() for _, line in SHOWN for part in (line, *line.split("&&"))]
    for entry, (why, twin) in NOT_RUN.items():
        assert why and any(line.startswith(entry) for line in lines), entry
        if twin and twin.startswith("peerbayes"):
            parse(shlex.split(twin)[1:])


def test_what_another_test_runs_is_there():
    for page, where in ELSEWHERE.items():
        assert (ROOT / page).exists() and (ROOT / where.partition(",")[0]).exists()
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert all(word in ci for word in ("peerbayes demo", "pytest", "ruff check .", "mypy", "README.md"))


# --- commands inside a text ------------------------------------------------------------------------------------


def mentioned():
    """`peerbayes …` in the text of pages, and in blocks that are indented."""
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        spans = re.findall(r"`(peerbayes [a-z-][^`]*)`", text)
        spans += re.findall(
            r"^    (?:[^#\n`]*[/ ])?(peerbayes (?:peer|network|simulate|report) .*)$",
            text,
            flags=re.MULTILINE,
        )
        for span in spans:
            yield page, " ".join(span.split())


@pytest.mark.parametrize(
    ("page", "span"), list(mentioned()), ids=lambda value: value[:60] if isinstance(value, str) else ""
)
def test_a_command_in_the_text_exists(page, span):
    first, *others = span.split("|")
    command, name = COMMANDS["peerbayes"], "peerbayes"
    for word in first.split()[1:]:
        if f"{name} {word}" in COMMANDS:
            name = f"{name} {word}"
            command = COMMANDS[name]
        elif hasattr(command, "list_commands") and re.fullmatch(r"[a-z]+", word):
            pytest.fail(f"there is no command {name} {word}")
    for other in others:
        assert f"{name.rpartition(' ')[0]} {other.split()[0]}" in COMMANDS, other
    known = {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    for option in re.findall(r"(?<=\s)(--[a-z][\w-]*)", first):
        assert option in {*known, "--help"}, f"{name} has no {option}"
