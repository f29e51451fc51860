"""/metrics for Prometheus: the figures of `status`; on request, and as a file once a run has ended."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from peerbayes.data import files
from peerbayes.errors import NeedsPerson, PartMissing, PeerbayesError
from peerbayes.peer.inspection import may_leave_home
from peerbayes.peer.state.folder import Home
from peerbayes.peer.status import Sent, status
from peerbayes.peer.tasks import supervised_thread


class Metric(NamedTuple):
    """One metric: its name, its help text, and its values by label."""

    name: str
    help: str
    values: list[tuple[dict[str, str], float]]

    @classmethod
    def of(cls, name: str, text: str, value: Any, label: str = "") -> Metric:
        """Return a metric of one value, or of a mapping from a label's values to its own."""
        values = value.items() if label else [("", value)]
        return cls(
            f"peerbayes_{name}", text, [({label: key} if label else {}, float(x)) for key, x in values]
        )


COUNTERS = tuple(
    f"peerbayes_{name}" for name in ("sent_messages", "sent_bytes", "refused_messages", "missed_messages")
)


def metrics_of(report: dict[str, Any], now: float, exact: bool) -> Iterator[Metric]:
    """Yield the metrics of a status report; `exact`: figures without noise may leave this machine."""
    neighbours, sent = report["neighbours"], report["sent"]
    up = {name: neighbour["state"] == "up" for name, neighbour in neighbours.items()}
    heard = {
        name: neighbour["seen"] for name, neighbour in neighbours.items() if neighbour["seen"] is not None
    }
    refused: Counter[str] = Counter()
    for entry in report["refusals"]:
        refused[entry["reason"]] += entry["count"]
    yield Metric.of("round", "The last completed round.", report["round"])
    yield Metric.of("rounds", "The number of rounds of the run.", report["rounds"])
    yield Metric.of("running", "Whether a process works on the folder.", report["running"])
    text = "The phase of the peer, in the label; the value is 1."
    yield Metric.of("phase", text, {report["phase"]: 1}, "phase")
    yield Metric.of("neighbour_up", "Whether a neighbour answers.", up, "neighbour")
    silent = {name: now - seen for name, seen in heard.items()}
    text = "Seconds since a neighbour's last message."
    yield Metric.of("neighbour_last_message_seconds", text, silent, "neighbour")
    yield Metric.of("sent_messages", "Messages that left this machine, by the audit log.", sent["messages"])
    yield Metric.of("sent_bytes", "Bytes that left this machine, by the audit log.", sent["bytes"])
    intact = report["audit"]["ok"]
    yield Metric.of("audit_log_ok", "Whether the hash chain of the audit log is intact.", intact)
    yield Metric.of("refused_messages", "Messages refused.", refused, "reason")
    yield Metric.of("missed_messages", "Rounds closed without a neighbour.", report["missing"], "neighbour")
    days = report["certificate_days"]
    yield Metric.of("certificate_days", "Days until the peer's certificate expires.", days)
    yield Metric.of("warnings", "Warnings that `status` shows.", len(report["warnings"]))
    if report["privacy"] is not None:
        spent = report["privacy"]["spent"]
        yield Metric.of("epsilon_spent", "Epsilon spent so far, of the agreed budget.", spent)
    if exact:
        yield from _of_rows(report)


def _of_rows(report: dict[str, Any]) -> Iterator[Metric]:
    """Yield figures of the peer's own rows, without noise."""
    if report["verdict"] is not None:
        good = report["verdict"]["good"]
        yield Metric.of("verdict_good", "Whether the run ended well: see `status`.", good)
    for figure_name, text in (
        ("test_error", "Error of the model on the peer's held-out rows."),
        ("train_error", "Error of the model on the rows the peer learns from."),
        ("disagreement", "Distance of neighbours' statistics from this peer's, relative to its own."),
    ):
        if report["judged"] is not None and (figure := report["judged"][figure_name]) is not None:
            yield Metric.of(figure_name, text, figure)


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

    def metrics() -> Iterator[Metric]:
        readable = "Whether the folder can be read."
        try:
            report = status(home, sent)
        except (PeerbayesError, OSError, sqlite3.Error):  # a folder that cannot be read now
            yield Metric.of("readable", readable, False)
            return
        yield Metric.of("readable", readable, True)
        yield from metrics_of(report, time.time(), exact)

    class Collector:
        def collect(self) -> Iterator[Any]:
            for metric in metrics():
                labels = ["peer", *(metric.values[0][0] if metric.values else ())]
                family = CounterMetricFamily if metric.name in COUNTERS else GaugeMetricFamily
                samples = family(metric.name, metric.help, labels=labels)
                for value_labels, value in metric.values:
                    samples.add_metric([name, *value_labels.values()], value)
                yield samples

    registry = CollectorRegistry()
    registry.register(Collector())
    return registry
