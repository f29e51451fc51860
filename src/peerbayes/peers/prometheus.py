"""/metrics for Prometheus, on request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peerbayes.peers.errors import PartMissing, PeerError
from peerbayes.peers.exact_figures import may_leave_home
from peerbayes.peers.home import Home
from peerbayes.peers.supervision import supervised_thread


def expose(address: str, home: Home, journals: list[Any]) -> None:
    """Serve counters of the node at http://HOST:PORT/metrics, on this machine unless a host is named."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    except ModuleNotFoundError as missing:
        raise PartMissing(f"{missing.name} is not installed: pip install 'peerbayes[peer]'") from missing
    host, _, port = address.rpartition(":")
    if not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"--metrics is {address!r}; expected PORT or HOST:PORT")
    name, exact = home.settings().name, may_leave_home(home)

    class Collector:
        def collect(self) -> Iterator[Any]:
            if not journals:
                return
            journal = journals[0]
            for what, text, value in (
                ("peerbayes_round", "The last round that is done.", journal.round),
                ("peerbayes_rounds", "The rounds of the run.", journal.rounds),
            ):
                gauge = GaugeMetricFamily(what, text, labels=["peer"])
                gauge.add_metric([name], value)
                yield gauge
            if journal.epsilon is not None:
                text = "Privacy spent so far, of what was agreed on."
                gauge = GaugeMetricFamily("peerbayes_epsilon_spent", text, labels=["peer"])
                gauge.add_metric([name], journal.epsilon)
                yield gauge
            for what, text in (
                ("test_error", "Error of the model on the peer's held-out rows."),
                ("train_error", "Error of the model on the rows the peer learns from."),
                ("disagreement", "How far neighbours' statistics are from this peer's, relative to them."),
            ):
                if exact and (figure := journal.figures.get(what)) is not None:
                    gauge = GaugeMetricFamily(f"peerbayes_{what}", text, labels=["peer"])
                    gauge.add_metric([name], figure)
                    yield gauge
            for what, text, label, counts in (
                (
                    "peerbayes_missed_messages",
                    "Rounds closed without a neighbour.",
                    "neighbour",
                    journal.missed,
                ),
                ("peerbayes_refused_messages", "Messages refused.", "reason", journal.refusals),
            ):
                counter = CounterMetricFamily(what, text, labels=["peer", label])
                for key, count in dict(counts).items():
                    counter.add_metric([name, key], count)
                yield counter

    registry = CollectorRegistry()
    registry.register(Collector())
    try:
        server, thread = start_http_server(int(port), host or "127.0.0.1", registry)
    except OSError as error:
        raise PeerError(f"--metrics {address}: {error.strerror}") from error

    def go_on() -> None:
        thread.join()  # it serves until it fails
        server.serve_forever()

    supervised_thread("the server of --metrics", go_on)
