"""What docs/deploy has for operators, checked by the tools that will read it and tried with real peers."""

import contextlib
import copy
import getpass
import grp
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("msgspec")
pytest.importorskip("yaml")
import yaml

from peerbayes.peer.agreement.column_facts import Facts
from peerbayes.peer.agreement.terms import Limits, Privacy, Terms
from peerbayes.peer.loopback import Loopback, free_ports
from peerbayes.peer.state.audit_log import Tail
from peerbayes.peer.state.disk import WAITING
from shared.commands import HANG
from shared.peer_processes import log_text, until_round
from shared.runs_of_folders import some_rows

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "docs" / "deploy"
RULES, ALERTS = DEPLOY / "prometheus-rules.yml", Path(__file__).with_name("prometheus_alerts.yml")
UNITS = ("peerbayes.service", "peerbayes-site.service")
RELAY_UNIT = "peerbayes-relay.service"
TRIANGLE = ((0, 1), (1, 2), (0, 2))


def tool(name):
    """The path of a tool; .ci/run puts some beside Python. Skips where there is none."""
    beside = f"{Path(sys.executable).parent}{os.pathsep}"
    found = shutil.which(name, path=f"{os.environ['PATH']}{os.pathsep}{beside}/usr/sbin")
    if found is None:
        pytest.skip(f"{name} is not installed (.ci/run installs it)")
    return found


def called(*words, code=0, **settings):
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=HANG, **settings
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def waited(what):
    """The first true result."""
    end = time.monotonic() + HANG
    while not (result := what()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return result


@pytest.fixture
def network(tmp_path):
    """Three peers whose rows have noise, of more rounds than a test waits for."""
    terms = Terms(
        "clinics", "y", {"a": "continuous", "b": "continuous"}, {"a": Facts(0.5, 1.0), "b": Facts(0.5, 1.0)},
        ("no", "yes"), rounds=4000, privacy=Privacy(epsilon=4.0, rows=60.0), strategy="exact",
        limits=Limits(deadline=HANG),
    )  # fmt: skip
    made = Loopback.create(tmp_path / "peers", terms, [some_rows(seed, 60) for seed in range(3)], TRIANGLE)
    for home in made.homes.values():
        home.settings_path.write_text(home.settings_path.read_text() + "\n[require]\nepsilon = 8.0\n")
    yield made
    made.stop()


# --- units ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*UNITS, RELAY_UNIT])
def test_systemd_understands_a_unit_and_finds_it_hardened(name, tmp_path):
    analyze, text = tool("systemd-analyze"), (DEPLOY / name).read_text(encoding="utf-8")
    unit = tmp_path / name
    unit.write_text(text.replace("/opt/peerbayes/bin/peerbayes", sys.executable))
    assert name not in called(analyze, "verify", "--man=no", unit)
    unit.write_text(unit.read_text().replace("ProtectSystem=strict", "ProtectSystems=strict"))
    done = subprocess.run([analyze, "verify", "--man=no", unit], capture_output=True, text=True)
    assert "'ProtectSystems' in section" in done.stdout + done.stderr  # it reads every line
    if "--offline" in called(analyze, "--help"):
        called(analyze, "security", "--offline=yes", "--threshold=20", DEPLOY / name)  # of 100, 0 is the best


def test_a_unit_starts_again_only_what_that_can_mend():
    texts = {name: (DEPLOY / name).read_text(encoding="utf-8") for name in UNITS}
    for text in texts.values():
        assert "\nRestart=on-failure\n" in text
    assert "\nRestartPreventExitStatus=2 3\n" in texts["peerbayes.service"]
    assert "\nRestartPreventExitStatus=2\n" in texts["peerbayes-site.service"]  # it has no exit code 3
    limits = {text.partition("# All it may write")[2] for text in texts.values()}
    assert len(limits) == 1 and "\nNoNewPrivileges=yes\n" in limits.pop()


def test_the_unit_of_a_relay_may_open_its_port_and_write_nothing():
    text, site = ((DEPLOY / name).read_text(encoding="utf-8") for name in (RELAY_UNIT, UNITS[1]))
    settings, of_site = (
        {line for line in each.splitlines() if re.match(r"[A-Z]\w+=", line)} for each in (text, site)
    )
    assert {"Restart=on-failure", "RestartPreventExitStatus=2", "DynamicUser=yes"} <= settings
    assert not any(
        line.startswith(("StateDirectory", "CacheDirectory", "ReadWritePaths")) for line in settings
    )
    assert "CapabilityBoundingSet=CAP_NET_BIND_SERVICE" in settings
    hardening = {
        line for line in of_site if line.startswith(("Protect", "Private", "Restrict", "SystemCall", "NoNew"))
    }
    assert hardening - settings == {"RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX"}


def words_of(unit):
    """What a unit starts, after the program's path."""
    [line] = re.findall(
        r"^ExecStart=\S+ (.*)$", (DEPLOY / unit).read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    return line.split()


@pytest.mark.parametrize("words", [words_of(RELAY_UNIT), None], ids=["unit", "compose"])
def test_what_starts_a_relay_starts_one_that_forwards_and_ends_when_told(words, tmp_path):
    """As the unit and compose have it, but for the port."""
    service = yaml.safe_load((DEPLOY / "compose-relay.yml").read_text(encoding="utf-8"))["services"]["relay"]
    words = words or service["command"]
    [port] = free_ports(1)
    assert words[-2] == "--listen" and words[-1].startswith("0.0.0.0:")
    command = [sys.executable, "-m", "peerbayes", *words[:-1], f"127.0.0.1:{port}"]
    environment = {**os.environ, "HOME": "/nowhere", "TMPDIR": str(tmp_path)}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, stdout=log, env=environment, cwd="/")
    try:

        def alive():
            assert process.poll() is None, (tmp_path / "log").read_text()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), HANG) as line:
                line.sendall(f"PEERBAYES/1 CALL {'0' * 64}\n".encode())
                return line.recv(200)
            return b""

        assert waited(alive).startswith(b"PEERBAYES/1 ")  # it speaks, and nobody waits there
        probe = [word.replace("7443", str(port)) for word in service["healthcheck"]["test"][2:]]
        called(sys.executable, *probe)
        second = subprocess.run(command, capture_output=True, timeout=HANG, env=environment)
        assert second.returncode == 2  # the port is in use: systemd does not try again
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG) == 0
    finally:
        process.kill()
        process.wait()


# --- logs ----------------------------------------------------------------------------------------------------


def configured(home):
    """The rotation of a peer's folder instead of /var/lib/peerbayes/peer, in the name of whoever runs the tests."""
    group = grp.getgrgid(os.getgid()).gr_name
    text = (DEPLOY / "peerbayes.logrotate").read_text(encoding="utf-8")
    text = text.replace("su peerbayes peerbayes", f"su {getpass.getuser()} {group}")
    for place in ("/var/lib/peerbayes", "/var/log/peerbayes"):
        text = text.replace(f"{place}/", f"{home.folder.parent}/")
    path = home.folder.parent / "peerbayes.logrotate"
    path.write_text(text)
    path.chmod(0o644)
    return path


def test_the_rotation_names_logs_for_people_and_no_ledger(network):
    logrotate, home = tool("logrotate"), network.homes["peer-1"]
    for name in ("audit.jsonl", "state.sqlite", "peer.key"):
        (home.folder / name).exists() or (home.folder / name).write_text("x\n")
    home.log_path.write_text("a line\n")
    told = called(logrotate, "-d", "-f", configured(home))
    considered = re.findall(r"considering log (\S+)", told)
    assert {path for path in map(Path, considered) if path.exists()} == {home.log_path}
    assert "error" not in told and "insecure" not in told and "audit.jsonl" not in told


@pytest.mark.long
def test_a_peer_whose_log_is_rotated_goes_on_writing_to_it_and_its_ledger_stays(network, tmp_path):
    logrotate, home = tool("logrotate"), network.homes["peer-1"]
    for name in network.homes:
        network.start(name)
    until_round(network, "peer-1", 5)
    conf = configured(home)
    called(logrotate, "-f", "-s", tmp_path / "status", conf)
    begun = log_text(network, "peer-1").count("\n")
    first = (home.folder / "peer.log.1").read_text()
    assert "agreed: 3 peers" in first and "agreed: 3 peers" not in log_text(network, "peer-1")
    waited(lambda: log_text(network, "peer-1").count(": heard ") > begun + 3)
    assert "\0" not in log_text(network, "peer-1")  # it appends, and does not go on where it was in the file
    called(logrotate, "-f", "-s", tmp_path / "status", conf)
    assert (home.folder / "peer.log.2.gz").exists()
    network.processes["peer-1"].send_signal(signal.SIGTERM)
    assert network.processes["peer-1"].wait(HANG) == 0
    lines = len(list(Tail(home.audit_path).read()))  # the chain is whole
    assert lines > 5 and not list(home.folder.glob("audit.jsonl?*"))


# --- alerts --------------------------------------------------------------------------------------------------


def rules():
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def test_promtool_understands_the_rules():
    assert f"{len(rules())} rules found" in called(tool("promtool"), "check", "rules", RULES)


def test_every_alert_fires_when_it_should_and_only_then(tmp_path):
    promtool = tool("promtool")
    called(promtool, "test", "rules", ALERTS)
    cases = [case for test in yaml.safe_load(ALERTS.read_text())["tests"] for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == {
        rule["alert"] for rule in rules()
    }
    for place, rule in enumerate(rules()):  # and the cases can fail: each notices that its rule is gone
        fewer = copy.deepcopy(rules())
        del fewer[place]
        (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "few", "rules": fewer}]}))
        tests = yaml.safe_load(ALERTS.read_text()) | {"rule_files": [str(tmp_path / "rules.yml")]}
        (tmp_path / "alerts.yml").write_text(yaml.safe_dump(tests))
        assert rule["alert"] in called(promtool, "test", "rules", tmp_path / "alerts.yml", code=1)


def test_the_alert_about_a_full_disk_knows_what_peers_say_then():
    [rule] = [rule for rule in rules() if rule["alert"] == "PeerbayesDiskFull"]
    assert f".*{WAITING}.*" in rule["expr"]


def fetched(address, **headers):
    with contextlib.suppress(OSError):
        request = urllib.request.Request(address, headers=headers)
        with urllib.request.urlopen(request, timeout=HANG) as answer:
            return answer.read().decode()
    return ""


def sampled(text):
    """The labels of every metric that has a value."""
    found = re.findall(r"^(peerbayes_\w+)\{(.*)\} ", text, flags=re.MULTILINE)
    return {name: set(re.findall(r'(\w+)="', labels)) for name, labels in found}


@pytest.mark.long
@pytest.mark.parametrize("command", ["run", "serve"])
def test_every_metric_of_the_rules_is_exported_by_a_peer_with_the_labels_that_they_name(network, command):
    pytest.importorskip("prometheus_client")
    [port] = free_ports(1)
    for name in network.homes:
        network.start(name, *(("--metrics", str(port)) if name == "peer-1" else ()), command=command)
    until_round(network, "peer-1", 3)
    address = network.founder.roster().member("peer-1").address.split(":")
    with contextlib.suppress(OSError), socket.create_connection((address[0], int(address[1]))) as junk:
        junk.sendall(b"GET / HTTP/1.1\r\n\r\n")
        junk.recv(100)
    every = set().union(*(re.findall(r"\bpeerbayes_\w+", rule["expr"]) for rule in rules()))
    refused = {"peerbayes_refused_messages_total"}  # it has values once something was refused

    def text_with_all():
        told = fetched(f"http://127.0.0.1:{port}/metrics")
        return told if every - refused <= set(sampled(told)) else ""

    text = waited(text_with_all)
    declared, samples = set(re.findall(r"^# TYPE (\w+) ", text, flags=re.MULTILINE)), sampled(text)
    for rule in rules():
        named = set(re.findall(r"\bpeerbayes_\w+", rule["expr"]))
        assert named <= declared, rule["alert"]
        joined = {label for on in re.findall(r"on \(([^)]*)\)", rule["expr"]) for label in on.split(", ")}
        shown = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        if named and not named & refused:
            assert joined <= {"instance"} | set.intersection(*(samples[name] for name in named)) | {"run"}
            assert joined | shown <= {"instance"} | set.union(*(samples[name] for name in named)), rule[
                "alert"
            ]
    assert 'peerbayes_running{network="clinics",peer="peer-1"} 1.0' in text
    assert 'peerbayes_done{network="clinics",peer="peer-1",run="1"} 0.0' in text
    assert 'peerbayes_ledger_epsilon_limit{network="clinics",peer="peer-1",run="1"} 8.0' in text


# --- compose -------------------------------------------------------------------------------------------------


def compose():
    """The command that reads compose files: Docker's, or the one that Debian has."""
    docker = shutil.which("docker")
    if docker and subprocess.run([docker, "compose", "version"], capture_output=True).returncode == 0:
        return [docker, "compose"]
    return [tool("docker-compose")]


def composed(folder, file="compose.yml", **changes):
    """What compose makes of a file, with a folder's peer and a token."""
    (folder / "token").write_text("a" * 32)
    environment = {**os.environ, "PEER": str(folder / "peer"), "TOKEN": str(folder / "token")}
    text = (DEPLOY / file).read_text(encoding="utf-8")
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "compose.yml").write_text(text)
    command = [*compose(), "-f", str(folder / "compose.yml"), "config"]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=HANG)


def test_compose_finds_the_file_valid_by_its_schema(tmp_path):
    done = composed(tmp_path)
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    assert set(services) == {"site", "dashboard"}
    for service in services.values():
        assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
        assert service["logging"]["options"]["max-size"] == "10m"
    for old, new in ({"read_only": "readonly"} | {"cap_drop": "cap_dropped"} | {"tmpfs:": "tmpf:"}).items():
        broken = composed(tmp_path, **{old: new})
        assert broken.returncode != 0 and new.rstrip(":") in broken.stderr  # it is the schema that is asked
    assert (
        "restart: on-failure:5" in (DEPLOY / "compose.yml").read_text()
    )  # exit code 2 does not go on for ever


def test_compose_finds_the_file_of_a_relay_valid(tmp_path):
    done = composed(tmp_path, "compose-relay.yml")
    assert done.returncode == 0, done.stderr
    relay = yaml.safe_load(done.stdout)["services"]["relay"]
    assert relay["read_only"] is True and relay["cap_drop"] == ["ALL"] and not relay.get("volumes")
    broken = composed(tmp_path, "compose-relay.yml", ulimits="ulimit")
    assert broken.returncode != 0 and "ulimit" in broken.stderr
    assert "restart: on-failure:5" in (DEPLOY / "compose-relay.yml").read_text()


def commands():
    services = yaml.safe_load((DEPLOY / "compose.yml").read_text(encoding="utf-8"))["services"]
    return {name: service["command"] for name, service in services.items()}


@pytest.mark.long
def test_the_services_of_compose_run_and_the_dashboard_needs_no_right_to_write(network, tmp_path):
    pytest.importorskip("starlette")
    pytest.importorskip("prometheus_client")
    home = network.homes["peer-1"]
    metrics, page = free_ports(2)
    (tmp_path / "token").write_text("a" * 32)
    (tmp_path / "token").chmod(0o600)
    given = {"/peer": str(home.folder), "0.0.0.0:9100": f"127.0.0.1:{metrics}", "0.0.0.0:8765": f"0.0.0.0:{page}",
             "/run/secrets/dashboard-token": str(tmp_path / "token")}  # fmt: skip
    words = {name: [given.get(word, word) for word in command] for name, command in commands().items()}
    for name in ("peer-2", "peer-3"):
        network.start(name, command="serve")
    with (tmp_path / "log").open("wb") as log, contextlib.ExitStack() as started:

        def start(name, *before):
            command = [*before, sys.executable, "-m", "peerbayes", *words[name]]
            process = started.enter_context(subprocess.Popen(command, stdout=log, stderr=log))
            started.callback(process.kill)
            return process

        site = start("site")
        waited(
            lambda: re.search(
                r"^peerbayes_round\{.*\} [1-9]", fetched(f"http://127.0.0.1:{metrics}/metrics"), re.M
            )
        )
        readonly = _readonly(home.folder)
        board = start("dashboard", *readonly)
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())

        def looked(path):
            assert board.poll() is None and site.poll() is None, (tmp_path / "log").read_text()
            with (
                contextlib.suppress(OSError),
                browser.open(f"http://127.0.0.1:{page}/{path}", timeout=HANG) as seen,
            ):
                return seen.read().decode()
            return ""

        assert "<html" in waited(lambda: looked(f"?token={'a' * 32}")).lower()
        waited(lambda: "peer-1" in looked("figures"))
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"http://127.0.0.1:{page}/", timeout=HANG)
        site.send_signal(signal.SIGTERM)
        assert site.wait(HANG) == 0
        assert not home.state_path.with_name(
            "state.sqlite-wal"
        ).exists()  # which SQLite would like to make again
        shown = called(*readonly, sys.executable, "-m", "peerbayes", "peer", "status", home.folder)
        assert "peer-1 in clinics: not running, round " in shown and "round 0 of" not in shown


def _readonly(folder):
    """The beginning of a command for which a folder is read-only; none where this user may not have that."""
    mount = f"mount --bind '{folder}' '{folder}' && mount -o remount,ro,bind '{folder}' && exec \"$@\""
    words = ["unshare", "-m", "sh", "-c", mount, "sh"]
    possible = subprocess.run([*words, "true"], capture_output=True).returncode == 0
    return words if possible else []
