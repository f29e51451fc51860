"""/metrics for Prometheus: the figures of the status; on request, and as a file once a run has ended."""

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
from peerbayes.peer.status import Sent, member_status, status
from peerbayes.peer.tasks import supervised_thread

GONE = ("left", "revoked")  # states of neighbours that nobody waits for


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


def metrics_of_member(report: dict[str, Any]) -> Iterator[Metric]:
    """Yield the metrics that do not depend on a run: those of the process, the certificate, and warnings."""
    yield Metric.of("running", "Whether a process works on the folder.", report["running"])
    text = "The phase of the peer, in the label; the value is 1."
    yield Metric.of("phase", text, {report["phase"]: 1}, "phase")
    days = report["certificate_days"]
    yield Metric.of("certificate_days", "Days until the peer's certificate expires.", days)
    renewal = report["renewal"]
    if renewal["at"] is not None:
        text = "When the certificate was renewed last, in seconds since 1970."
        yield Metric.of("certificate_renewed_timestamp_seconds", text, renewal["at"])
    text = "Whether the certificate is to be renewed, and is not yet."
    yield Metric.of("certificate_renewal_failing", text, bool(renewal["problem"]))
    kinds = report["links"] or {}
    yield Metric(
        "peerbayes_neighbour_link",
        "How a neighbour is linked now, in the label: direct, reversed, relayed or none; the value is 1.",
        [({"neighbour": name, "kind": kind}, 1.0) for name, kind in kinds.items()],
    )
    yield Metric.of("warnings", "Warnings that `status` shows.", len(report["warnings"]))


def metrics_of(report: dict[str, Any], now: float, exact: bool) -> Iterator[Metric]:
    """Yield the metrics of the status of a run; `exact`: figures without noise may leave this machine."""
    neighbours, sent = report["neighbours"], report["sent"]
    awaited = {name: state for name, state in neighbours.items() if state["state"] not in GONE}
    refused: Counter[str] = Counter()
    for entry in report["refusals"]:
        refused[entry["reason"]] += entry["count"]
    yield Metric.of("round", "The last completed round.", report["round"])
    yield Metric.of("rounds", "The number of rounds of the run.", report["rounds"])
    yield Metric.of("done", "Whether all rounds of the run are done.", report["done"])
    up = {name: state["state"] == "up" for name, state in awaited.items()}
    yield Metric.of("neighbour_up", "Whether a neighbour answers.", up, "neighbour")
    silent = {name: now - state["seen"] for name, state in awaited.items() if state["seen"] is not None}
    text = "Seconds since a neighbour's last message."
    yield Metric.of("neighbour_last_message_seconds", text, silent, "neighbour")
    usual = {name: state["usual"] for name, state in neighbours.items() if state["usual"] is not None}
    text = "Seconds that a neighbour's messages usually take after a round began."
    yield Metric.of("neighbour_usual_seconds", text, usual, "neighbour")
    waiting = {entry["neighbour"]: entry["seconds"] for entry in report["waiting"]}
    yield Metric.of("waiting_seconds", "Seconds that the open round has waited so far.", waiting, "neighbour")
    yield Metric.of("sent_messages", "Messages that left this machine, by the audit log.", sent["messages"])
    yield Metric.of("sent_bytes", "Bytes that left this machine, by the audit log.", sent["bytes"])
    intact = report["audit"]["ok"]
    yield Metric.of("audit_log_ok", "Whether the hash chain of the audit log is intact.", intact)
    yield Metric.of("refused_messages", "Messages refused.", refused, "reason")
    yield Metric.of("missed_messages", "Rounds closed without a neighbour.", report["missing"], "neighbour")
    if report["privacy"] is not None:
        yield from _of_privacy(report["privacy"])
    if exact:
        yield from _of_rows(report)


def _of_privacy(privacy: dict[str, Any]) -> Iterator[Metric]:
    """Yield what the run, and all runs over the same rows, have spent."""
    spent, earlier, allowed = privacy["spent"], privacy["with_earlier_runs"], privacy["allowed"]
    yield Metric.of("epsilon_spent", "Epsilon spent so far, of the agreed budget.", spent)
    text = "Epsilon spent on the rows by all runs, according to the ledger."
    yield Metric.of("ledger_epsilon", text, spent if earlier is None else earlier)
    if allowed is not None:
        text = "Epsilon that the owner allows all runs on the rows together: [require] in peer.toml."
        yield Metric.of("ledger_epsilon_limit", text, allowed)


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


def expose_metrics(address: str, *homes: Home) -> None:
    """Serve metrics of peers at http://HOST:PORT/metrics, on the loopback interface unless a host is named."""
    host, _, port = address.rpartition(":")
    if not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"--metrics is {address!r}; expected PORT or HOST:PORT")
    registry = _registry(homes)
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


def write_metrics(home: Home) -> None:
    """Write the metrics to a file in the folder, for collectors such as node_exporter, if it is writable."""
    with contextlib.suppress(PeerbayesError, OSError):
        registry = _registry((home,))
        from prometheus_client import generate_latest

        files.write(home.folder / "metrics.prom", generate_latest(registry))


class Exported:
    """A peer's folder, as /metrics shows it."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.labels = {"peer": home.settings().name, "network": home.roster().network}
        self._sent: dict[Home, Sent] = {}

    def metrics(self) -> Iterator[tuple[dict[str, str], Metric]]:
        """Yield metrics and the labels that all their values have."""
        readable, found = "Whether the folder can be read.", list[tuple[dict[str, str], Metric]]()
        try:
            member = member_status(self.home, self.home.member())
            found += ((self.labels, metric) for metric in metrics_of_member(member))
            for run in self._runs():
                sent, exact = self._sent.setdefault(run, Sent(run)), may_leave_home(run)
                labels = self.labels | {"run": str(run.run_number)}
                found += ((labels, metric) for metric in metrics_of(status(run, sent), time.time(), exact))
        except (PeerbayesError, OSError, sqlite3.Error):  # a folder that cannot be read now
            yield self.labels, Metric.of("readable", readable, False)
            return
        yield self.labels, Metric.of("readable", readable, True)
        yield from found

    def _runs(self) -> list[Home]:
        """Return the runs that go on, or else the last one that began."""
        begun = self.home.begun_runs()
        return [run for run in begun if not run.outcome_path.exists()] or begun[-1:]


def _registry(homes: tuple[Home, ...]) -> Any:
    try:
        from prometheus_client import CollectorRegistry
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    except ModuleNotFoundError as missing:
        raise PartMissing(f"{missing.name} is not installed: pip install 'peerbayes[peer]'") from missing
    exported = [Exported(home) for home in homes]

    class Collector:
        def collect(self) -> Iterator[Any]:
            families: dict[str, Any] = {}
            found = [each for folder in exported for each in folder.metrics()]
            for labels, metric in sorted(
                found, key=lambda each: not each[1].values
            ):  # empty ones have no labels
                own = [*metric.values[0][0]] if metric.values else []
                family = CounterMetricFamily if metric.name in COUNTERS else GaugeMetricFamily
                if metric.name not in families:
                    families[metric.name] = family(metric.name, metric.help, labels=[*labels, *own])
                for value_labels, value in metric.values:
                    families[metric.name].add_metric([*labels.values(), *value_labels.values()], value)
            yield from families.values()

    registry = CollectorRegistry()
    registry.register(Collector())
    return registry
