"""/metrics for Prometheus: the figures of `status`; on request, and as a file once a run has ended."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from peerbayes.data import files
from peerbayes.errors import NeedsPerson, PartMissing, PeerbayesError
from peerbayes.peer.inspection import may_leave_home
from peerbayes.peer.state.folder import Home
from peerbayes.peer.status import Sent, status
from peerbayes.peer.tasks import supervised_thread


class Metric(NamedTuple):
    """One metric: its name, its help text, its values by label, and whether it is a counter."""

    name: str
    help: str
    values: list[tuple[dict[str, str], float]]
    counts: bool = False


def metrics_of(report: dict[str, Any], now: float, exact: bool) -> Iterator[Metric]:
    """Yield the metrics of a status report; `exact`: figures without noise may leave this machine."""

    def single(name: str, text: str, value: float, counts: bool = False) -> Metric:
        return Metric(f"peerbayes_{name}", text, [({}, float(value))], counts)

    yield single("round", "The last completed round.", report["round"])
    yield single("rounds", "The number of rounds of the run.", report["rounds"])
    yield single("running", "Whether a process works on the folder.", report["running"])
    yield Metric(
        "peerbayes_phase",
        "The phase of the peer, in the label; the value is 1.",
        [({"phase": report["phase"]}, 1.0)],
    )
    neighbours = report["neighbours"]
    yield Metric(
        "peerbayes_neighbour_up",
        "Whether a neighbour answers.",
        [({"neighbour": name}, float(neighbour["state"] == "up")) for name, neighbour in neighbours.items()],
    )
    yield Metric(
        "peerbayes_neighbour_last_message_seconds",
        "Seconds since a neighbour's last message.",
        [
            ({"neighbour": name}, now - neighbour["seen"])
            for name, neighbour in neighbours.items()
            if neighbour["seen"] is not None
        ],
    )
    yield single(
        "sent_messages",
        "Messages that left this machine, by the audit log.",
        report["sent"]["messages"],
        True,
    )
    yield single(
        "sent_bytes", "Bytes that left this machine, by the audit log.", report["sent"]["bytes"], True
    )
    yield single("audit_log_ok", "Whether the hash chain of the audit log is intact.", report["audit"]["ok"])
    refused: dict[str, int] = {}
    for entry in report["refusals"]:
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
        [({"neighbour": name}, float(count)) for name, count in report["missing"].items()],
        True,
    )
    yield single("certificate_days", "Days until the peer's certificate expires.", report["certificate_days"])
    yield single("warnings", "Warnings that `status` shows.", len(report["warnings"]))
    if report["privacy"] is not None:
        yield single(
            "epsilon_spent", "Epsilon spent so far, of the agreed budget.", report["privacy"]["spent"]
        )
    if exact:
        yield from _of_rows(report, single)


def _of_rows(report: dict[str, Any], single: Any) -> Iterator[Metric]:
    """Yield figures of the peer's own rows, without noise."""
    if report["verdict"] is not None:
        yield single("verdict_good", "Whether the run ended well: see `status`.", report["verdict"]["good"])
    for figure_name, text in (
        ("test_error", "Error of the model on the peer's held-out rows."),
        ("train_error", "Error of the model on the rows the peer learns from."),
        ("disagreement", "Distance of neighbours' statistics from this peer's, relative to its own."),
    ):
        if report["judged"] is not None and (figure := report["judged"][figure_name]) is not None:
            yield single(figure_name, text, figure)


def expose(address: str, home: Home) -> None:
    """Serve metrics of a peer at http://HOST:PORT/metrics, on the loopback interface unless a host is named."""
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
    """Write the metrics to a file in the folder, for collectors such as node_exporter, if it is writable."""
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
                report = status(home, sent)
            except (PeerbayesError, OSError, sqlite3.Error):  # a folder that cannot be read now
                yield _family(Metric("peerbayes_readable", "Whether the folder can be read.", [({}, 0.0)]))
                return
            yield _family(Metric("peerbayes_readable", "Whether the folder can be read.", [({}, 1.0)]))
            for metric in metrics_of(report, time.time(), exact):
                yield _family(metric)

    def _family(metric: Metric) -> Any:
        labels = ["peer", *(metric.values[0][0] if metric.values else ())]
        family = CounterMetricFamily if metric.counts else GaugeMetricFamily
        samples = family(metric.name, metric.help, labels=labels)
        for value_labels, value in metric.values:
            samples.add_metric([name, *value_labels.values()], value)
        return samples

    registry = CollectorRegistry()
    registry.register(Collector())
    return registry
