"""/metrics for Prometheus: what `status` tells, as numbers; on request, and as a file once a run has ended."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from peerbayes import files
from peerbayes.errors import PeerbayesError
from peerbayes.peers.errors import NeedsPerson, PartMissing
from peerbayes.peers.exact_figures import may_leave_home
from peerbayes.peers.home import Home
from peerbayes.peers.status import Sent, status
from peerbayes.peers.supervision import supervised_thread


class Metric(NamedTuple):
    """One metric: its name, what it is, whether it only grows, and its values by label."""

    name: str
    help: str
    values: list[tuple[dict[str, str], float]]
    counts: bool = False


def metrics_of(told: dict[str, Any], now: float, exact: bool) -> Iterator[Metric]:
    """Return what `status` tells, as metrics; `exact`: figures without noise may leave this machine."""

    def one(name: str, text: str, value: float, counts: bool = False) -> Metric:
        return Metric(f"peerbayes_{name}", text, [({}, float(value))], counts)

    yield one("round", "The last round that is done.", told["round"])
    yield one("rounds", "The rounds of the run.", told["rounds"])
    yield one("running", "Whether a process works on the folder.", told["running"])
    yield Metric(
        "peerbayes_phase", "What the peer is at: 1, in the label.", [({"phase": told["phase"]}, 1.0)]
    )
    lines = told["neighbours"]
    yield Metric(
        "peerbayes_neighbour_up",
        "Whether a neighbour answers.",
        [({"neighbour": name}, float(line["state"] == "up")) for name, line in lines.items()],
    )
    yield Metric(
        "peerbayes_neighbour_last_message_seconds",
        "Seconds since a neighbour's last message.",
        [
            ({"neighbour": name}, now - line["seen"])
            for name, line in lines.items()
            if line["seen"] is not None
        ],
    )
    yield one(
        "sent_messages",
        "Messages that left this machine, as the audit log has it.",
        told["sent"]["messages"],
        True,
    )
    yield one(
        "sent_bytes", "Bytes that left this machine, as the audit log has it.", told["sent"]["bytes"], True
    )
    yield one(
        "audit_log_ok", "Whether every line of the audit log fits to the one before.", told["audit"]["ok"]
    )
    refused: dict[str, int] = {}
    for entry in told["refusals"]:
        refused[entry["reason"]] = refused.get(entry["reason"], 0) + entry["count"]
    yield Metric(
        "peerbayes_refused_messages",
        "Messages refused.",
        [({"reason": reason}, float(count)) for reason, count in refused.items()],
        True,
    )
    yield Metric(
        "peerbayes_missed_messages",
        "Rounds closed without a neighbour.",
        [({"neighbour": name}, float(count)) for name, count in told["missing"].items()],
        True,
    )
    yield one("certificate_days", "Days until the peer's certificate ends.", told["certificate_days"])
    yield one("warnings", "Warnings that `status` shows.", len(told["warnings"]))
    if told["privacy"] is not None:
        yield one("epsilon_spent", "Privacy spent so far, of what was agreed on.", told["privacy"]["spent"])
    if exact:
        yield from _of_rows(told, one)


def _of_rows(told: dict[str, Any], one: Any) -> Iterator[Metric]:
    """Return what is known of the peer's own rows: figures without noise."""
    if told["verdict"] is not None:
        yield one("verdict_good", "Whether the run ended well: see `status`.", told["verdict"]["good"])
    for what, text in (
        ("test_error", "Error of the model on the peer's held-out rows."),
        ("train_error", "Error of the model on the rows the peer learns from."),
        ("disagreement", "How far neighbours' statistics are from this peer's, relative to them."),
    ):
        if told["judged"] is not None and (figure := told["judged"][what]) is not None:
            yield one(what, text, figure)


def expose(address: str, home: Home) -> None:
    """Serve metrics of a peer at http://HOST:PORT/metrics, on this machine unless a host is named."""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"--metrics is {address!r}; expected PORT or HOST:PORT")
    registry = _registry(home)
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(int(port), host or "127.0.0.1", registry)
    except OSError as error:
        raise NeedsPerson(
            f"--metrics {address} cannot be listened on: {error.strerror}; name another port or host"
        ) from error

    def go_on() -> None:
        thread.join()  # it serves until it fails
        if server.fileno() >= 0:  # not closed on purpose
            server.serve_forever()

    supervised_thread("the server of --metrics", go_on)


def write(home: Home) -> None:
    """Write the metrics into the folder, for whoever collects such files (node_exporter), if it can be written to."""
    with contextlib.suppress(PeerbayesError, OSError):
        registry = _registry(home)
        from prometheus_client import generate_latest

        files.write(home.folder / "metrics.prom", generate_latest(registry))


def _registry(home: Home) -> Any:
    try:
        from prometheus_client import CollectorRegistry
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    except ModuleNotFoundError as missing:
        raise PartMissing(f"{missing.name} is not installed: pip install 'peerbayes[peer]'") from missing
    name, sent, exact = home.settings().name, Sent(home), may_leave_home(home)

    class Collector:
        def collect(self) -> Iterator[Any]:
            try:
                told = status(home, sent)
            except (PeerbayesError, OSError, sqlite3.Error):  # a folder that cannot be read now
                yield _family(Metric("peerbayes_readable", "Whether the folder can be read.", [({}, 0.0)]))
                return
            yield _family(Metric("peerbayes_readable", "Whether the folder can be read.", [({}, 1.0)]))
            for metric in metrics_of(told, time.time(), exact):
                yield _family(metric)

    def _family(metric: Metric) -> Any:
        labels = ["peer", *(metric.values[0][0] if metric.values else ())]
        family = CounterMetricFamily if metric.counts else GaugeMetricFamily
        made = family(metric.name, metric.help, labels=labels)
        for own, value in metric.values:
            made.add_metric([name, *own.values()], value)
        return made

    registry = CollectorRegistry()
    registry.register(Collector())
    return registry
