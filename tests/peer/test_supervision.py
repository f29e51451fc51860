"""What goes on beside a peer's work: it is started again where it fails, or the peer ends and says why."""

import asyncio
import contextlib
import socket
import threading
import time
import urllib.request

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("msgspec")
from peerbayes.peer import service, tasks
from peerbayes.peer.protocol.client import Client
from peerbayes.peer.protocol.connections import Spare
from peerbayes.peer.protocol.transport import Links
from peerbayes.peer.status import Journal
from peerbayes.peer.tasks import BackgroundTasks, TaskFailed, supervised, supervised_thread
from shared.commands import HANG
from shared.real_calls import ask, channel_of, made_network, node_of, request, within

INJECTED = RuntimeError("injected")


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """What failed is started again at once."""
    monkeypatch.setattr(tasks, "PAUSE", 0.01)
    monkeypatch.setattr(service, "WATCH", 0.01)
    monkeypatch.setattr(service, "FLUSH", 0.01)


def failing(times, then, error=INJECTED):
    """A function that fails so many times, and then does what it should."""
    left = iter(range(times))

    def work(*given):
        if next(left, None) is not None:
            raise error
        return then(*given)

    return work


async def until(holds):
    while not holds():
        await asyncio.sleep(0.005)


# --- the rule ------------------------------------------------------------------------------------------


def test_what_fails_is_started_again_and_the_reason_logged(caplog):
    done = []

    async def work():
        await asyncio.sleep(0)
        step()

    step = failing(12, lambda: done.append(True))
    within(supervised("the test", work))
    assert done == [True]
    lines = [record.message for record in caplog.records]
    assert lines == [
        "the test failed and is started again: RuntimeError: injected",
        "the test failed and is started again, for the 10th time: RuntimeError: injected",
    ]
    assert all(record.exc_info for record in caplog.records)  # where in the code


def test_what_fails_for_good_ends_the_work_with_a_reason(monkeypatch):
    monkeypatch.setattr(tasks, "MOST", 3)

    async def work():
        raise RuntimeError("injected")

    async def main():
        main_work = asyncio.ensure_future(asyncio.sleep(HANG))
        background = BackgroundTasks(main_work)
        background.add("the test", work)
        with pytest.raises(asyncio.CancelledError):
            await main_work
        await background.stop()
        return background.failed

    failed = within(main())
    assert isinstance(failed, TaskFailed)
    assert str(failed).startswith(
        "the test failed 3 times in a row, the last time with RuntimeError: injected; this peer"
    )


def test_trouble_of_the_machine_passes_and_ends_nothing(monkeypatch):
    monkeypatch.setattr(tasks, "MOST", 3)
    done = []

    async def work():
        step()

    step = failing(20, lambda: done.append(True), OSError(24, "Too many open files"))

    async def main():
        background = BackgroundTasks(asyncio.ensure_future(asyncio.sleep(HANG)))
        background.add("the test", work)
        await until(lambda: done)
        await background.stop()
        background._work.cancel()
        return background.failed

    assert within(main()) is None


def test_a_thread_that_fails_goes_on(caplog):
    done = threading.Event()
    thread = supervised_thread("the test", failing(2, done.set))
    assert done.wait(HANG)
    thread.join(HANG)
    assert not thread.is_alive() and "the test failed and is started again" in caplog.text


# --- the tasks of a peer -------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def served(home):
    """A peer as `peer run` serves it, and what it logged last; it waits for neighbours that are not there."""
    task = asyncio.ensure_future(service.serve(home, 0.0))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.links
def test_the_watch_of_the_folder_goes_on_after_a_failure(tmp_path, monkeypatch, caplog):
    """A revocation that is put into the folder is in force, whatever went wrong before."""
    network, read = made_network(tmp_path), Spare.run
    home, failures = network.homes["peer-1"], failing(3, lambda: None)
    monkeypatch.setattr(Spare, "run", lambda self, work: (failures(), read(self, work))[1])

    async def work():
        async with served(home):
            await until(lambda: "agreeing on columns" in caplog.text)
            network.founder.revoke("peer-3")
            home.join(network.founder.roster_path.read_bytes())
            await until(lambda: f"roster {network.founder.roster().version} is in force" in caplog.text)

    with caplog.at_level("INFO", "peerbayes.peer"):
        within(work())
    assert (
        "the watch of the roster in the folder failed and is started again: RuntimeError: injected"
        in caplog.text
    )


@pytest.mark.links
def test_the_writing_of_what_happens_goes_on_after_a_failure(tmp_path, monkeypatch, caplog):
    network, flush, written = made_network(tmp_path), Journal.flush, []
    failures = failing(3, lambda: None)

    def flushed(self, *facts):
        failures()
        flush(self, *facts)
        written.append(True)

    monkeypatch.setattr(Journal, "flush", flushed)

    async def work():
        async with served(network.homes["peer-1"]):
            await until(lambda: len(written) > 2)

    within(work())
    assert "the writing of what happens failed and is started again: RuntimeError: injected" in caplog.text


@pytest.mark.parametrize("what", ["the watch of the roster in the folder", "the writing of what happens"])
def test_a_peer_whose_task_fails_for_good_stops_and_says_so(tmp_path, monkeypatch, what):
    monkeypatch.setattr(tasks, "MOST", 3)
    network = made_network(tmp_path)

    def never(self, *given):
        raise INJECTED

    monkeypatch.setattr(*((Spare, "run") if "watch" in what else (Journal, "flush")), never)

    with pytest.raises(TaskFailed, match=f"{what} failed 3 times in a row"):
        within(service.serve(network.homes["peer-1"], 0.0))


def test_a_server_that_fails_is_started_again(tmp_path, monkeypatch, caplog):
    network, accept = made_network(tmp_path), Links._accept
    failures = failing(2, lambda: None)

    async def accepted(self, server):
        failures()
        await accept(self, server)

    monkeypatch.setattr(Links, "_accept", accepted)

    async def work():
        async with (
            served(network.homes["peer-1"]),
            channel_of(network, "peer-1", "peer-2") as channel,
        ):
            assert (await ask(channel, request(network, "peer-2", "hello"))).status == "ok"

    within(work())
    assert "the server for neighbours failed and is started again" in caplog.text


@pytest.mark.links
def test_a_line_that_fails_is_started_again(tmp_path, monkeypatch, caplog):
    """The run ends as if nothing had been, though every line failed at first, before it asked for anything."""
    network, wanted = made_network(tmp_path, rounds=3), Client._wanted
    failures = failing(9, lambda: None)
    monkeypatch.setattr(Client, "_wanted", lambda self, name: (failures(), wanted(self, name))[1])

    async def work():
        with contextlib.ExitStack() as stack:
            nodes = [stack.enter_context(node_of(home, linger=60.0))[0] for home in network.homes.values()]
            await asyncio.gather(*(node.run() for node in nodes))
            assert [node.session.round_index for node in nodes] == [3] * 3

    within(work())
    assert "the line to peer-" in caplog.text and "RuntimeError: injected" in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_server_of_metrics_goes_on_after_a_failure(tmp_path, monkeypatch, caplog):
    pytest.importorskip("prometheus_client")
    from prometheus_client.exposition import ThreadingWSGIServer

    from peerbayes.peer.prometheus import expose_metrics

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    failures, failed = failing(2, lambda: None), []

    def act(self):
        if self.server_port != port:  # a server that an earlier test started
            return
        try:
            failures()
        except RuntimeError:
            failed.append(True)
            raise

    monkeypatch.setattr(ThreadingWSGIServer, "service_actions", act)
    expose_metrics(str(port), made_network(tmp_path).homes["peer-1"])
    end = time.monotonic() + HANG
    while len(failed) < 2:
        assert time.monotonic() < end
        time.sleep(0.01)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=HANG) as answer:
        assert answer.status == 200
    assert "the server of --metrics failed and is started again" in caplog.text
