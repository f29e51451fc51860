"""Real peers and sites whose certificates are due: they renew them while they run, by a deputy two links away."""

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("msgspec")
from peerbayes.peer.identity import keys
from peerbayes.peer.identity.renewal import due_at
from peerbayes.peer.loopback import Loopback
from peerbayes.peer.renewing import Renewed
from shared.commands import HANG, peerbayes
from shared.peer_processes import history, log_text, until_round
from shared.runs_of_folders import CHAIN, some_rows, terms_of

pytestmark = pytest.mark.long  # processes

AGO, LIFE = timedelta(days=25), 30.0  # certificates of 30 days that end in five: all are due


def signed(network, roster):
    """Have everybody adopt a roster that the authority signs."""
    network.founder.roster_path.write_bytes(roster.signed(network.founder.key_path.read_bytes()))
    for home in network.homes.values():
        home.roster_path.write_bytes(network.founder.roster_path.read_bytes())


@pytest.fixture
def network(tmp_path):
    """Three in a line with certificates that are due; the last one is a deputy."""
    tables = [some_rows(seed) for seed in range(3)]
    made = Loopback.create(tmp_path, terms_of(rounds=200_000), tables, CHAIN)
    founder, roster = made.founder, made.founder.roster()
    key, began = founder.key_path.read_bytes(), datetime.now(UTC) - AGO
    for name, home in made.homes.items():
        current = home.certificate_path.read_bytes()
        due = keys.reissue(key, founder.authority(), current, LIFE, began)
        home.certificate_path.write_bytes(due)
        founder.certificate_path(name).write_bytes(due)
        roster = roster.with_changed(replace(roster.member(name), certificate=keys.fingerprint(due)))
    signed(made, roster)
    signed(made, founder.name_deputy("peer-3"))
    settings = made.homes["peer-3"].settings_path
    settings.write_text(f'renews = "."\n{settings.read_text()}')
    yield made
    made.stop()


def is_renewed(home):
    certificate = home.certificate_path.read_bytes()
    return due_at(certificate) > datetime.now(UTC)


def waited(network, what):
    end = time.monotonic() + HANG
    while not what():
        assert time.monotonic() < end, {name: log_text(network, name)[-600:] for name in network.processes}
        assert all(process.poll() is None for process in network.processes.values())
        time.sleep(0.2)


@pytest.mark.links
@pytest.mark.parametrize(
    "commands", [("run", "run", "run"), ("serve", "serve", "serve"), ("run", "serve", "run")]
)
def test_certificates_that_are_due_are_renewed_while_the_run_goes_on(network, commands):
    homes, before = network.homes, {name: home.key_path.read_bytes() for name, home in network.homes.items()}
    assert not any(map(is_renewed, homes.values()))
    for name, command in reversed(list(zip(homes, commands, strict=True))):
        network.start(name, command=command)
        waited(
            network,
            lambda name=name: "serves" in log_text(network, name) or "agreeing" in log_text(network, name),
        )
    waited(network, lambda: all(map(is_renewed, homes.values())))
    waited(
        network, lambda: all(Renewed.read(home).by for home in homes.values())
    )  # written after the certificate
    assert Renewed.read(homes["peer-3"]).by == "peer-3" and Renewed.read(homes["peer-1"]).by == "peer-2"
    waited(network, lambda: Renewed.read(homes["peer-1"]).problem == "")
    for name, home in homes.items():
        assert home.key_path.read_bytes() == before[name]
        waited(network, lambda name=name: "was renewed by way of" in log_text(network, name))
    now = len(history(homes["peer-1"]))
    until_round(network, "peer-1", now + 5)


@pytest.mark.links
def test_a_peer_that_starts_again_with_a_renewed_certificate_is_heard(network, monkeypatch):
    for name in network.homes:
        network.start(name)
    waited(network, lambda: all(map(is_renewed, network.homes.values())))
    until_round(network, "peer-1", 3)
    network.processes["peer-1"].terminate()
    assert network.processes["peer-1"].wait(HANG) == 0
    network.start("peer-1")
    end, now = time.monotonic() + 30, len(history(network.homes["peer-1"]))
    while len(history(network.homes["peer-1"])) < now + 5:
        assert time.monotonic() < end and "other certificate" not in log_text(network, "peer-2")
        time.sleep(0.2)


def test_a_deputy_that_was_revoked_renews_nothing_and_says_so(network):
    network.founder.revoke("peer-3")
    signed(network, network.founder.roster())
    settings = network.homes["peer-2"].settings_path
    settings.write_text(f'renews = "../peer-3"\n{settings.read_text()}')  # where the deputy's key was
    told = peerbayes("peer", "renew", network.homes["peer-2"].folder, code=1).stdout
    assert "not renewed: nobody has renewed it yet" in told
    assert Renewed.read(network.homes["peer-2"]).problem
    status = peerbayes("peer", "status", network.homes["peer-2"].folder, code=0).stdout
    assert "ends in 4 days" in " ".join(status.split()) or "ends in 5 days" in " ".join(status.split())
    done = peerbayes("peer", "run", network.homes["peer-3"].folder, code=2)
    assert "was revoked" in done.stderr
