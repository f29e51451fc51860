"""`peerbayes network` and the files of `peerbayes peer`: what they write and print, and how they end."""

import json

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("msgspec")
from typer.testing import CliRunner

from peerbayes.cli.app import app
from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.identity.founder import Founder, spread_links
from peerbayes.peer.identity.roster import Member, Roster
from peerbayes.peer.state.folder import Home


def run(*arguments, code=0, command="network"):
    done = CliRunner().invoke(app, [command, *map(str, arguments)])
    assert done.exit_code == code, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A network's folder, and a place to work in."""
    monkeypatch.chdir(tmp_path)
    run("new", "net", "--name", "hospitals", "--label", "outcome")
    return tmp_path / "net"


def request(name, port):
    run(
        "request",
        name,
        "--name",
        name,
        "--address",
        f"127.0.0.1:{port}",
        "--data",
        "rows.csv",
        command="peer",
    )


def invite(name, port, *more, code=0):
    where = ("--request", f"{name}/peer.csr", "--address", f"127.0.0.1:{port}", "--network", "net")
    return run("invite", name, *where, *more, code=code)


def test_three_peers_from_nothing_to_members(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(
        "new", "net", "--name", "hospitals", "--label", "outcome", "--feature", "age=continuous", "--feature", "sex",
        "--feature", "a=b=discrete", "--rounds", 9, "--clip", 0, "--deadline", 5, "--peers", 3,
    )  # fmt: skip
    for word in ("authority.key", "authority.crt", "agreement.toml", "roster.json", "Next", "network invite"):
        assert word in done.stdout
    founder = Founder(tmp_path / "net")
    assert oct(founder.key_path.stat().st_mode)[-3:] == "600"
    assert founder.roster() == Roster("hospitals", founder.terms().digest, 0, (), ())
    assert founder.terms().features == {"a=b": "discrete", "age": "continuous", "sex": "auto"}
    assert (founder.terms().rounds, founder.terms().clip, founder.terms().limits.deadline) == (9, None, 5)
    for place, name in enumerate(("a", "b", "c")):
        request(name, 7001 + place)
        shown = invite(name, 7001 + place).stdout
        assert f"{name}.invitation" in shown and ("closed" if place == 2 else f"{place + 1} of 3") in shown
        shown = run("join", name, f"{name}.invitation", command="peer").stdout
        assert "peer run" in shown and "peer serve" in shown
        assert Home(tmp_path / name).load().roster.version == place + 1 + (place == 2)
    assert founder.roster().closed and founder.roster().links == (("a", "b"), ("a", "c"), ("b", "c"))
    assert (
        "has roster version 4 of hospitals: 3 members, closed"
        in run("join", "a", "net/roster.json", command="peer").stdout
    )
    assert Home(tmp_path / "a").load().roster == Home(tmp_path / "c").load().roster
    assert Home(tmp_path / "a").load().terms == founder.terms()
    for path in tmp_path.rglob("*"):  # private keys are nowhere but in their own folder
        if path.is_file() and path.suffix != ".key":
            assert b"PRIVATE KEY" not in path.read_bytes(), path
    request("d", 7004)
    assert "linked to a, b, c; roster version 5" in invite("d", 7004).stdout  # for later runs
    assert "exists already" in invite("e", 7005, "--out", "d.invitation", code=2).stderr
    assert founder.roster().version == 5


def test_closing_by_hand_and_revoking(folder):
    for place, name in enumerate(("a", "b", "c")):
        request(name, 7001 + place)
        assert "then `close`" in invite(name, 7001 + place, *(("--links", "a") if place == 2 else ())).stdout
    assert "closed with 3 members; roster version 4" in run("close", "--network", folder).stdout
    shown = run("revoke", "a", "--network", folder).stdout
    assert "are linked from the next run on: b and c" in shown and "roster.json" in shown
    roster = Founder(folder).roster()
    assert roster.revoked == ("a",) and len(roster.members) == 3 and roster.version == 5
    assert "already revoked" in run("revoke", "a", "--network", folder, code=2).stderr
    assert "no member" in run("revoke", "x", "--network", folder, code=2).stderr
    assert "closed already" in run("close", "--network", folder, code=2).stderr


def test_before_it_is_closed_a_revoked_peer_is_taken_out(folder):
    for place, name in enumerate(("a", "b")):
        request(name, 7001 + place)
        invite(name, 7001 + place)
    run("revoke", "a", "--network", folder)
    roster = Founder(folder).roster()
    assert [member.name for member in roster.members] == ["b"] and roster.revoked == ("a",)
    assert "was revoked" in invite("a", 7001, code=2).stderr
    run("close", "--network", folder)


def test_a_member_moves_and_gets_a_new_certificate(folder):
    for place, name in enumerate(("a", "b")):
        request(name, 7001 + place)
        invite(name, 7001 + place)
        run("join", name, f"{name}.invitation", command="peer")
    run("close", "--network", folder)
    before = Founder(folder).roster()
    assert "`--again`" in invite("a", 8001, code=2).stderr
    invite("a", 8001, "--again")
    after = Founder(folder).roster()
    assert after.run == before.run and after.member("a").address == "127.0.0.1:8001" and after.closed
    assert "connect to 127.0.0.1:8001" in run("join", "a", "a.invitation", command="peer").stdout
    assert Home(folder.parent / "a").load().roster == after


def test_invitations_that_are_refused_write_nothing(folder):
    request("a", 7001)
    invite("a", 7001)
    request("b", 7002)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for arguments, says in (
        (("b", 7001), "a already uses 127.0.0.1:7001"),
        (("b", 7002, "--links", "x"), "'x' is no member"),
        (("b", 7002, "--request", "a/peer.csr"), "request is of 'a'"),
        (("b", 7002, "--again"), "'b' is no member"),
        (("b", 99999), "expected host:port"),
        (("b", 7002, "--network", "nowhere"), "expected a network's folder"),
    ):
        assert says in invite(*arguments, code=2).stderr
    assert "No such file" in invite("b", 7002, "--request", "nothing", code=1).stderr
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_the_agreement_may_change_until_somebody_is_invited(folder):
    agreement = folder / "agreement.toml"
    agreement.write_text(Terms("hospitals", "outcome", rounds=3).to_toml() + "# ours\n")
    request("a", 7001)
    invite("a", 7001)
    run("join", "a", "a.invitation", command="peer")
    assert Home(folder.parent / "a").load().terms.rounds == 3
    assert (folder.parent / "a" / "agreement.toml").read_text() == agreement.read_text()
    agreement.write_text(Terms("hospitals", "outcome", rounds=4).to_toml())
    request("b", 7002)
    assert "changed since the first invitation" in invite("b", 7002, code=2).stderr
    agreement.write_text(Terms("clinics", "outcome").to_toml())
    assert "expected 'hospitals'" in invite("b", 7002, code=2).stderr


def test_new_takes_an_agreement_or_options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text('network = "n"\nlabel = "y"  # mine\n')
    run("new", "net", "--terms", "mine.toml")
    assert (tmp_path / "net" / "agreement.toml").read_text() == (tmp_path / "mine.toml").read_text()
    assert "only one of them" in run("new", "x", "--terms", "mine.toml", "--rounds", 3, code=2).stderr
    assert "already exists" in run("new", "net", "--terms", "mine.toml", code=2).stderr
    assert "--label is missing" in run("new", "x", "--name", "n", code=2).stderr
    twice = ("--feature", "a", "--feature", "a=auto")
    assert "twice" in run("new", "x", "--name", "n", "--label", "y", *twice, code=2).stderr
    assert "1 or more" in run("new", "x", "--name", "n", "--label", "y", "--peers", 0, code=2).stderr
    (tmp_path / "mine.toml").write_text('network = "n"\nlabel = "y"\nrounds = 0')
    assert "mine.toml, line 3: rounds is 0" in run("new", "x", "--terms", "mine.toml", code=2).stderr
    assert not (tmp_path / "x").exists()


def test_new_members_are_linked_to_those_with_the_fewest_links():
    roster = Roster("n", "0" * 64, 0, (), ())
    counts = []
    for place in range(12):
        names = [member.name for member in roster.members]
        degrees = {name: len(roster.neighbours(name)) for name in names}
        links = spread_links(f"p{place}", names, degrees)
        counts.append(len(links))
        roster = roster.with_member(Member(f"p{place}", f"h:{place + 1}", "0" * 64), links)
        assert len(roster.parts()) == 1
    assert counts == [0, 1, 2, 3, 4, 4, 4, 4, 4, 4, 4, 4]


def test_inspect_shows_folders_and_files(folder):
    request("a", 7001)
    assert "has not joined yet" in run("inspect", "a").stdout
    invite("a", 7001)
    run("join", "a", "a.invitation", command="peer")
    request("b", 7002)
    invite("b", 7002)
    run("close", "--network", folder)
    run("revoke", "b", "--network", folder)
    shown = run("inspect", folder).stdout
    for word in ("a network's folder", "predict    outcome", "127.0.0.1:7001  linked to b", "REVOKED", "closed",
                 "valid until", "version 4"):  # fmt: skip
        assert word in shown
    assert "the folder of a" in run("inspect", "a").stdout
    assert "an invitation of a" in run("inspect", "a.invitation").stdout
    assert "a roster" in run("inspect", "net/roster.json").stdout
    assert "an agreement" in run("inspect", "net/agreement.toml").stdout
    told = json.loads(run("inspect", folder, "--format", "json").stdout)
    assert (
        told["roster"]["revoked"] == ["b"]
        and told["roster"]["closed"]
        and len(told["roster"]["members"]) == 2
    )
    assert told["terms"]["label"] == "outcome" and set(told["expiries"]) == {"the authority", "a", "b"}
    assert told["terms"]["digest"] == told["roster"]["terms"]


def test_inspect_compares(folder):
    request("a", 7001)
    invite("a", 7001)
    run("join", "a", "a.invitation", command="peer")
    assert "are the same" in run("inspect", folder, "a").stdout
    assert json.loads(run("inspect", folder, "a.invitation", "--format", "json").stdout) == {
        "differences": []
    }
    request("b", 7002)
    invite("b", 7002)
    shown = run("inspect", "a", folder, code=1).stdout.splitlines()
    assert shown == ["version: 1 against 2", "member b: only in the second", "link a - b: only in the second"]
    (folder.parent / "other.toml").write_text(Terms("hospitals", "outcome", rounds=32).to_toml())
    assert run("inspect", folder, "other.toml", code=1).stdout == "rounds: 64 against 32\n"
    told = run("inspect", "other.toml", folder, "--format", "json", code=1).stdout
    assert json.loads(told) == {"differences": ["rounds: 32 against 64"]}
    assert "expected two with" in run("inspect", "other.toml", "net/roster.json", code=2).stderr


def test_inspect_refuses_what_it_does_not_know(folder):
    assert "neither a network's nor a peer's folder" in run("inspect", folder.parent, code=2).stderr
    assert "No such file" in run("inspect", "nothing", code=1).stderr
    assert "--format is 'xml'" in run("inspect", folder, "--format", "xml", code=2).stderr
    (folder / "roster.json").write_bytes(
        (folder / "roster.json").read_bytes().replace(b'"version":0', b'"version":1')
    )
    assert "signature does not match" in run("inspect", folder, code=2).stderr


def test_peer_commands_refuse_with_advice(folder):
    assert "lower-case" in run(
        "request", "x", "--name", "X", "--address", "a:1", "--data", "d.csv", code=2, command="peer"
    ).stderr  # fmt: skip
    request("a", 7001)
    again = ("request", "a", "--name", "a", "--address", "a:1", "--data", "d.csv")
    assert "already exists" in run(*again, code=2, command="peer").stderr
    (folder.parent / "junk").write_bytes(b"junk")
    assert "neither an invitation" in run("join", "a", "junk", code=2, command="peer").stderr
    assert "No such file" in run("join", "a", "missing", code=1, command="peer").stderr
    assert "has not joined yet" in run("join", "a", "net/roster.json", code=2, command="peer").stderr
