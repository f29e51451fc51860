"""Figures without noise stay on a private peer's machine: not on /metrics, not on a dashboard that others can reach."""

import contextlib
import json
import re
import urllib.request

import numpy as np
import pandas as pd
import pytest

from peerbayes.errors import ConfigurationError
from peerbayes.peer.agreement.column_facts import Facts
from peerbayes.peer.agreement.terms import Privacy, Terms
from peerbayes.peer.inspection import NO_NOISE, may_leave_home
from peerbayes.peer.loopback import Loopback, free_ports
from peerbayes.peer.protocol import wire
from peerbayes.peer.state.peer_settings import Settings
from peerbayes.peer.state.store import FIGURES, RoundRecord, Store
from peerbayes.peer.status import Journal
from peerbayes.report.style import packed
from shared.commands import peerbayes
from shared.report_runs import unpacked

ROWS = pd.DataFrame({"x": [0.0, 1.0], "y": ["a", "b"]})
EXACT = {"train_error": 0.123456, "soft_error": 0.234567, "test_error": 0.345678, "disagreement": 0.456789}
VERDICT = {
    "good": False,
    "joint_error": 0.567891,
    "sentences": ["56.7891 % of its rows are wrong"],
    "problems": 1,
}
PRIVATE = {
    "features": {"x": "continuous"},
    "facts": {"x": Facts(0.0, 1.0)},
    "classes": ("a", "b"),
    "privacy": Privacy(epsilon=2.0, rows=2.0, min_rows=1),
}


def home_of(folder, terms, show=False):
    """A peer with a round behind it whose figures are known."""
    network = Loopback.create(folder, Terms("net", "y", rounds=9, **terms), [ROWS] * 2, [(0, 1)])
    home = network.homes["peer-1"]
    with contextlib.closing(Store(home.state_path)) as store:
        store.add_round(RoundRecord(0, (np.zeros((2, 2)),), {}, (), ()))
        store.add_round(RoundRecord(1, (np.ones((2, 2)),), {}, ("peer-2",), (), EXACT))
        store.keep("verdict", json.dumps(VERDICT))
    if show:
        home.settings_path.write_text(home.settings_path.read_text() + "show_exact_figures = true\n")
    return home


CASES = pytest.mark.parametrize(
    ("terms", "show", "leave"), [(PRIVATE, False, False), (PRIVATE, True, True), ({}, False, True)]
)


TIMES = {"at", "now", "seen", "speed"}  # facts that depend on the clock, and may have any digits


def numbers_in(content):
    """Every number of a JSON document: as a value, in a packed array, or in a text with three decimals or more."""
    if isinstance(content, dict) and "bdata" in content:
        yield from unpacked(content).ravel().tolist()
    elif isinstance(content, dict):
        for key, value in content.items():
            if key not in TIMES and not key.endswith("_seconds"):
                yield from numbers_in(value)
    elif isinstance(content, list):
        for value in content:
            yield from numbers_in(value)
    elif isinstance(content, str):
        yield from map(float, re.findall(r"(?<![\w.])\d+\.\d{3,}", content))
    elif isinstance(content, int | float):
        yield float(content)


def shown(content, figures=EXACT):
    """Which of the figures a JSON document has, in full or rounded to three digits."""
    numbers = list(numbers_in(content))
    return {name for name, value in figures.items() if any(abs(n - value) < 6e-4 for n in numbers)}


def test_a_figure_is_noticed_as_a_value_and_not_as_digits_of_a_time():
    error = EXACT["test_error"]
    for content in (error, [{"y": packed([0.0, error])}], {"text": f"error {error:.3f} on held-out rows"}):
        assert shown({"content": content}) == {"test_error"}
    assert not shown({"at": error, "neighbours": [{"seen": 1763315890.345678}], "text": "1763315890.345678"})


@CASES
def test_metrics_have_them_only_where_they_may_leave(terms, show, leave, tmp_path):
    pytest.importorskip("prometheus_client")
    from peerbayes.peer.prometheus import expose_metrics

    home = home_of(tmp_path, terms, show)
    (port,) = free_ports(1)
    expose_metrics(str(port), home)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        told = answer.read().decode()
    assert "peerbayes_round{" in told and ("peerbayes_epsilon_spent" in told) == bool(terms)
    assert ("peerbayes_verdict_good" in told) == leave
    lines = [line for line in told.splitlines() if line.startswith("peerbayes_")]
    metrics = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines}
    assert shown(metrics) == ({"train_error", "test_error", "disagreement"} if leave else set())
    assert may_leave_home(home) == leave


@CASES
@pytest.mark.parametrize("remote", [False, True])
def test_a_dashboard_has_them_on_this_machine_or_where_they_may_leave(terms, show, leave, remote, tmp_path):
    pytest.importorskip("starlette")
    from peerbayes.report.dashboard import feed

    seen = feed.Folder(home_of(tmp_path, terms, show).folder, remote).look()
    exact = leave or not remote
    judged = seen.facts["judged"]
    assert {name: judged[name] for name in FIGURES} == (EXACT if exact else dict.fromkeys(EXACT))
    assert seen.facts["verdict"] == (VERDICT if exact else None)
    assert seen.facts["figures"] == ("hidden" if not exact else "exact" if terms else "plain")
    for name in FIGURES:
        assert np.isnan(seen.view.curves[name]).all() == (not exact)
        if name in seen.view.last:
            assert np.isnan(seen.view.last[name]).all() == (not exact)
    whole = json.loads(feed.figures(seen, 1, 0.0))
    secret = EXACT | {"joint_error": VERDICT["joint_error"], "sentence": 56.7891}
    shown_figures = shown([whole, json.loads(feed.peer(seen, 0))], secret)
    assert shown_figures == (set(secret) if exact else set())
    assert whole["figures"]  # and all the rest is drawn


def test_others_than_this_machine_are_those_with_a_token_or_at_another_address(tmp_path):
    from peerbayes.report.dashboard.access import Access, Address

    token = tmp_path / "token"
    token.write_text("t" * 32)
    assert not Access.granted(Address.parse("127.0.0.1:8765")).remote
    assert Access.granted(Address.parse("127.0.0.1:8765"), token).remote
    assert Access.granted(Address.parse("0.0.0.0:8765"), plain_http=True).remote
    assert Access.granted(Address.parse("0.0.0.0:8765"), token, plain_http=True).remote


def test_the_dashboard_is_told_who_may_look(tmp_path, monkeypatch):
    """The address and the token of `watch` reach the folder that is looked at."""
    pytest.importorskip("uvicorn")
    from peerbayes.report.dashboard import web_server
    from peerbayes.report.dashboard.access import Access, Address

    asked = []
    monkeypatch.setattr(web_server, "Folder", lambda path, remote, others: asked.append(remote))
    monkeypatch.setattr(web_server, "Feed", lambda folder: (_ for _ in ()).throw(KeyboardInterrupt))
    monkeypatch.setattr(web_server.os, "nice", lambda by: None)
    (port,) = free_ports(1)
    for access in (
        Access(Address.parse(f"127.0.0.1:{port}")),
        Access(Address.parse(f"127.0.0.1:{port}"), "t" * 32),
    ):
        with pytest.raises(KeyboardInterrupt):
            web_server.serve(tmp_path, access, lambda url: None)
    assert asked == [False, True]


def test_the_owner_sees_them_here_and_is_told_that_they_carry_no_noise(tmp_path, caplog):
    home = home_of(tmp_path, PRIVATE)
    assert f"error 0.3457 on held-out rows ({NO_NOISE})" in " ".join(
        peerbayes("peer", "status", home.folder).stdout.split()
    )
    with contextlib.closing(Store(home.state_path)) as store, caplog.at_level("INFO"):
        Journal(store)(
            "round", {"round": 1, "of": 9, "heard": [], "missing": [], "figures": EXACT, "epsilon": 1.0}
        )
    assert NO_NOISE in caplog.text
    plain = home_of(tmp_path / "plain", {})
    assert NO_NOISE not in peerbayes("peer", "status", plain.folder).stdout


def test_requests_and_replies_have_no_place_for_them():
    """A new field of a message is thought about here: may it depend on rows?"""
    assert set(wire.Request.__struct_encode_fields__) == {
        "version", "run", "sender", "kind", "phase", "turn", "schema", "done", "roster", "wait",
        "body", "roster_digest",  # a roster
        "heard",  # signed digests of others' messages
        "base",  # which message of the other peer its sender has
        "process", "shown",  # which start of a peer speaks, and how many rounds and releases it has stored
        "lowest", "highest",  # versions
    }  # fmt: skip
    assert set(wire.Reply.__struct_encode_fields__) == {
        "version", "run", "sender", "kind", "status", "phase", "turn", "schema", "done", "roster", "clock", "shape",
        "digest", "body", "signature", "base",  # releases, and what is made of them
        "missed",  # rounds since a message did not arrive
        "correction",  # a weighted sum of messages that both ends of the link have had
        "roster_digest", "process", "shown", "lowest", "highest",
        "reason",  # why a request was refused: of what it said; what a call back met
    }  # fmt: skip


def test_the_setting_is_written_and_read_and_says_what_it_gives_away(tmp_path):
    settings = Settings("a", "localhost:1", "0.0.0.0:1", str(tmp_path / "rows.csv"), show_exact_figures=True)
    path = tmp_path / "peer.toml"
    path.write_text(settings.to_toml(tmp_path))
    assert Settings.read(path) == settings and "without noise, also to other machines" in path.read_text()
    path.write_text(path.read_text().replace("= true", '= "yes"'))
    with pytest.raises(ConfigurationError, match="show_exact_figures is 'yes'; expected true or false"):
        Settings.read(path)
