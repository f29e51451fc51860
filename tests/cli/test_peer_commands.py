"""`peerbayes peer` on real folders: checks with advice, rows from a database, metrics, leaving."""

import contextlib
import json
import socket
import sqlite3
import time
import urllib.request

import pytest

pytest.importorskip("cryptography")

from sklearn.datasets import load_iris

import peerbayes as pb
from peerbayes.peer.agreement.terms import Limits, Terms
from peerbayes.peer.loopback import Loopback, free_ports
from peerbayes.peer.prometheus import expose_metrics
from shared.commands import HANG, peerbayes

IRIS = load_iris(as_frame=True).frame.sample(frac=1.0, random_state=0)
TABLES = [IRIS.iloc[:60], IRIS.iloc[60:105], IRIS.iloc[105:]]
LINE = [(0, 1), (1, 2)]


def peer(*words):
    return peerbayes("peer", *words)


def findings(home):
    done = peer("check", home.folder, "--format", "json")
    return done.returncode, {
        found["what"]: (found["outcome"], found["told"]) for found in json.loads(done.stdout)
    }


@pytest.fixture
def network(tmp_path):
    made = Loopback.create(tmp_path, Terms("iris", "target", rounds=12, strategy="exact"), TABLES, LINE)
    yield made
    made.stop()


def rewrite(home, **settings):
    """Other settings in peer.toml."""
    lines = [
        line
        for line in home.settings_path.read_text().splitlines()
        if line.split("=")[0].strip("# ") not in settings
    ]
    home.settings_path.write_text("\n".join([*lines, *(f'{k} = "{v}"' for k, v in settings.items())]) + "\n")


@pytest.mark.links
@pytest.mark.long
def test_rows_come_from_a_database_and_from_parquet_and_metrics_tell_the_round(network, tmp_path):
    pytest.importorskip("sqlalchemy")
    pytest.importorskip("pyarrow")
    pytest.importorskip("prometheus_client")
    first, second, third = network.homes.values()
    with contextlib.closing(sqlite3.connect(tmp_path / "rows.db")) as database:
        TABLES[0].to_sql("flowers", database, index=False)
    rewrite(first, data=f"sqlite:///{tmp_path / 'rows.db'}", query="SELECT * FROM flowers")
    TABLES[1].to_parquet(tmp_path / "rows.parquet")
    rewrite(second, data=str(tmp_path / "rows.parquet"))
    [port] = free_ports(1)
    network.start("peer-1", "--metrics", str(port))
    network.start("peer-2")
    told, until = "", time.monotonic() + HANG  # they wait for peer-3
    while "peerbayes_round" not in told and time.monotonic() < until:
        address = f"http://127.0.0.1:{port}/metrics"
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=HANG) as answer:
            told = answer.read().decode()
        time.sleep(0.1)
    assert 'peerbayes_round{network="iris",peer="peer-1",run="1"} 0.0' in told
    network.start("peer-3")
    network.wait()
    rows, labels = IRIS.drop(columns="target").reset_index(drop=True), IRIS["target"].to_numpy()
    run = pb.simulate(
        rows, labels, peers=3, topology="chain", partition=[range(60), range(60, 105), range(105, 150)], rounds=12,
        strategy="exact", test=(rows, labels),
    )  # fmt: skip
    for place, home in enumerate(network.homes.values()):
        model = pb.load(home.model_path)
        found = model.statistics_.expressed(run.schema).values
        assert abs(found - run.statistics(place).values).max() <= 1e-9
        assert oct(home.model_path.stat().st_mode & 0o777) == "0o600"
    assert third.log_path.read_text().count(": heard ") == 12
    left = (first.folder / "metrics.prom").read_text()  # what they were stays when the process has gone
    for line in (
        'round{network="iris",peer="peer-1",run="1"} 12.0',
        'running{network="iris",peer="peer-1"} 0.0',
        'verdict_good{network="iris",peer="peer-1",run="1"} 1.0',
    ):
        assert f"\npeerbayes_{line}\n" in left, left
    assert 'peerbayes_phase{network="iris",peer="peer-1",phase="not running"} 1.0' in left


def test_metrics_are_for_this_machine_unless_a_host_is_named(network, monkeypatch):
    prometheus_client = pytest.importorskip("prometheus_client")
    servers, start = [], prometheus_client.start_http_server
    monkeypatch.setattr(
        prometheus_client, "start_http_server", lambda *given: servers.append(start(*given)) or servers[-1]
    )
    here, everywhere = free_ports(2)
    try:
        expose_metrics(str(here), network.homes["peer-1"])
        expose_metrics(f"0.0.0.0:{everywhere}", network.homes["peer-1"])
        for host, port in (("127.0.0.1", here), ("127.0.0.1", everywhere), ("127.0.0.2", everywhere)):
            with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=60) as answer:
                assert answer.status == 200
        with pytest.raises(OSError, match="refused"):  # another address of this machine stands for others
            urllib.request.urlopen(f"http://127.0.0.2:{here}/metrics", timeout=60)
    finally:
        for server, thread in servers:
            server.shutdown()
            server.server_close()
            thread.join()
    for address in ("", "x", "0", "65536", "127.0.0.1:x"):
        with pytest.raises(ValueError, match="expected PORT or HOST:PORT"):
            expose_metrics(address, network.homes["peer-1"])


def test_check_says_what_is_wrong_and_what_to_do(network):
    home = network.homes["peer-2"]
    code, found = findings(home)
    assert code == 0 and found["identity"][0] == found["data"][0] == found["port"][0] == "ok"
    assert found["neighbour peer-1"] == ("warning", found["neighbour peer-1"][1])
    assert "it is not running" in found["neighbour peer-1"][1]
    assert found["privacy"][0] == "warning"  # 45 rows

    rewrite(home, data=str(home.folder / "nothing.csv"))
    with socket.create_server(("127.0.0.1", int(home.settings().listen.rpartition(":")[2]))):
        code, found = findings(home)
    assert code == 1
    assert found["data"][0] == "failed" and "does not exist" in found["data"][1]
    assert found["port"][0] == "failed" and "another program uses the port" in found["port"][1]

    home.key_path.unlink()
    code, found = findings(home)
    assert code == 1 and found["identity"][0] == "failed"


def test_too_few_rows_and_a_missing_column_are_found_before_the_run(tmp_path):
    terms = Terms(
        "iris", "target", features={"height": "continuous"}, limits=Limits(rows=50), strategy="exact"
    )
    network = Loopback.create(tmp_path, terms, TABLES, LINE)
    code, found = findings(network.homes["peer-1"])
    assert code == 1 and "'height'" in found["data"][1]
    done = peer("run", network.homes["peer-1"].folder)
    assert done.returncode == 2 and "'height'" in done.stderr


@pytest.mark.links
@pytest.mark.long
def test_leaving_lets_the_others_go_on_at_once(tmp_path):
    """A deadline of an hour, and nobody waits for it."""
    terms = Terms(
        "iris", "target", rounds=3_000, limits=Limits(deadline=3600.0, quorum=1.0), strategy="exact"
    )
    network = Loopback.create(tmp_path, terms, TABLES, LINE)
    home = network.homes["peer-3"]
    try:
        for name in network.homes:
            network.start(name)
        while peer("status", home.folder).stdout.count("round 0 of") or not home.model_path.exists():
            time.sleep(0.1)
        network.processes["peer-3"].terminate()
        assert network.processes["peer-3"].wait(HANG) == 0
        assert "stopped after round" in home.log_path.read_text()
        left = peer("leave", home.folder, "--yes")
        assert left.returncode == 0 and "peer-2: told" in left.stdout, left.stdout + left.stderr
        before = json.loads(peer("status", network.homes["peer-2"].folder, "--format", "json").stdout)[
            "round"
        ]
        until = time.monotonic() + HANG
        while time.monotonic() < until:
            told = json.loads(peer("status", network.homes["peer-2"].folder, "--format", "json").stdout)
            if told["round"] > before + 5 and told["neighbours"]["peer-3"]["note"] == "left":
                break
        assert told["round"] > before + 5 and told["neighbours"]["peer-3"]["note"] == "left"
        assert home.model_path.exists() and not home.state_path.exists()
        assert list(home.folder.glob("state.left-*.sqlite"))
    finally:
        network.stop()
