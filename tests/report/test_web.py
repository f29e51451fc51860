"""The dashboard over HTTP: who is let in, what is answered, and how it bears slow viewers, kills and damage."""

import asyncio
import contextlib
import gzip
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time

import httpx
import numpy as np
import pytest

from shared.commands import HANG
from shared.dashboards import PEERS, ROUNDS, Simulated, until, watching

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("plotly")

from peerbayes.errors import AddressError, PeerError, WebError
from peerbayes.peer.state.audit_log import AuditLog, Tail
from peerbayes.report.dashboard import feed as feed_module
from peerbayes.report.dashboard import feed as messages
from peerbayes.report.dashboard.access import Access, Address, launch, names_loopback
from peerbayes.report.dashboard.feed import Feed, Folder, Viewer
from peerbayes.report.dashboard.web_server import application
from peerbayes.simulation.result import LIVE_FILE, RUN_FILE
from peerbayes.simulation.view import Following, LiveFile, Structure, sampled

TOKEN = "a-token-of-the-tests-0123456789"


@pytest.fixture
def simulated(tmp_path):
    made = Simulated(tmp_path)
    for _ in range(3):
        made.round()
    yield made
    made.file.close()


class Browser:
    """Asks an application, without a network."""

    def __init__(self, inside, host):
        self._runner = asyncio.Runner()
        transport = httpx.ASGITransport(inside, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url=f"http://{host}")

    def request(self, method, path, **settings):
        return self._runner.run(self._client.request(method, path, **settings))

    def get(self, path, **settings):
        return self.request("GET", path, **settings)

    def head(self, path, **settings):
        return self.request("HEAD", path, **settings)

    def close(self):
        self._runner.run(self._client.aclose())
        self._runner.close()


@pytest.fixture
def client():
    """Makes browsers of a folder."""
    with contextlib.ExitStack() as stack:

        def made(folder, token=None, secure=False, host="127.0.0.1:8765"):
            inside = application(Feed(Folder(folder)), token, 8765, secure)
            return stack.enter_context(contextlib.closing(Browser(inside, host)))

        yield made


# --- who is let in ---------------------------------------------------------------------------------------


def test_every_answer_carries_the_policy_and_nothing_is_shared_with_other_sites(client, simulated, tmp_path):
    asked = client(tmp_path)
    for path in ("/", "/figures", "/peers/0", "/peers/99", "/static/dashboard.js", "/nowhere"):
        headers = asked.get(path).headers
        policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
        assert policy["script-src"] == policy["connect-src"] == "'self'" and policy["form-action"] == "'none'"
        assert "unsafe-inline" not in policy["style-src"]
        assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
        assert (
            headers["cross-origin-resource-policy"] == headers["cross-origin-opener-policy"] == "same-origin"
        )
        assert headers["cache-control"] in ("no-store", "no-cache")
        assert not any(name.startswith("access-control") for name in headers) and "server" not in headers


def test_it_can_only_be_read(client, simulated, tmp_path):
    asked = client(tmp_path)
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
        refused = asked.request(method, "/figures")
        assert refused.status_code == 405 and refused.headers["allow"] == "GET, HEAD"
    for path in ("/", "/figures", "/events", "/static/page.css"):
        answer = asked.head(path)
        assert answer.status_code == 200 and answer.content == b""


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "8765", "", "[::1", "localhost:x", "10.0.0.1", "notlocalhost",
     "localhost.evil.example", "[::1]evil.example", "127.0.0.1:80:80", "0.0.0.0", "[::]", "192.168.0.1"],
)  # fmt: skip
def test_on_loopback_another_host_is_refused(client, simulated, tmp_path, host):
    assert not names_loopback(host)
    refused = client(tmp_path).get("/figures", headers={"host": host})
    assert refused.status_code == 421 and b"round" not in refused.content


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9000", "127.0.0.1", "127.9.9.9:1", "[::1]:8765"])
def test_a_tunnel_to_loopback_is_let_in(client, simulated, tmp_path, host):
    assert client(tmp_path).get("/figures", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("token", [None, TOKEN])
def test_what_is_not_http_is_refused(simulated, tmp_path, token):
    """A web socket is closed before anything of it is read, whoever opens it, and with the token, too."""
    told = []
    path, headers = "/events", [(b"host", b"127.0.0.1"), (b"cookie", f"peerbayes-8765={TOKEN}".encode())]
    scope = {
        "type": "websocket",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": headers,
    }

    async def receive():
        pytest.fail("something was read")

    async def send(message):
        told.append(message)

    async def open_it():
        await application(Feed(Folder(tmp_path)), token, 8765)(scope, receive, send)

    asyncio.run(open_it())
    assert told == [{"type": "websocket.close", "code": 1008}]


def test_errors_tell_nothing_and_carry_the_policy(caplog):
    class Watched:
        def look(self):
            raise RuntimeError("the password is 1234")

    with contextlib.closing(Browser(application(Feed(Watched()), None, 8765), "127.0.0.1")) as asked:
        for path in ("/figures", "/model", "/peers/0"):
            failed = asked.get(path)
            assert failed.status_code == 500 and "1234" not in failed.text
            assert failed.text == "This request failed; see the output of the dashboard's process.\n"
            assert failed.headers["cache-control"] == "no-store"
            assert "default-src 'none'" in failed.headers["content-security-policy"]


def test_so_many_may_watch_and_the_next_is_told_to_come_back(simulated, tmp_path, monkeypatch):
    monkeypatch.setattr(feed_module, "VIEWERS", 3)
    feed = Feed(Folder(tmp_path))
    with contextlib.closing(Browser(application(feed, None, 8765), "127.0.0.1")) as asked:
        with contextlib.ExitStack() as stack:
            for _ in range(3):
                assert asked.head("/events").status_code == 200
                stack.enter_context(feed.viewer())
            assert asked.head("/events").status_code == 503
            assert asked.get("/figures").status_code == 200
        assert asked.head("/events").status_code == 200  # they are gone


def test_other_sites_may_link_to_the_page_and_read_nothing(client, simulated, tmp_path):
    asked = client(tmp_path)
    for site in ("cross-site", "same-site"):  # another port of this machine is the same site
        assert asked.get("/", headers={"sec-fetch-site": site}).status_code == 200
        for path in ("/figures", "/events", "/peers/0", "/static/plotly.min.js"):
            assert asked.get(path, headers={"sec-fetch-site": site}).status_code == 403


def test_the_token_is_shown_once_and_then_kept_in_a_cookie(client, simulated, tmp_path):
    asked = client(tmp_path, TOKEN, secure=True, host="watched.example")
    for path in (
        "/",
        "/figures",
        "/events",
        "/static/page.css",
        "/?token=",
        f"/?token={TOKEN}x",
        f"/figures?token={TOKEN}",
    ):
        refused = asked.get(path)
        assert refused.status_code == 401 and TOKEN not in refused.text
    assert (
        asked.get(f"http://watched.example//evil.example?token={TOKEN}").status_code == 401
    )  # no way out by the redirect
    shown = asked.get(f"/?token={TOKEN}")
    assert shown.status_code == 303 and shown.headers["location"] == "/" and shown.content == b""
    cookie = shown.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and "secure" in cookie and "path=/" in cookie
    assert cookie.startswith("peerbayes-8765=")  # browsers send cookies of one port to all others
    kept = {"cookie": f"other=1; {shown.headers['set-cookie'].partition(';')[0]}; =x"}
    assert asked.get("/figures", headers=kept).json()["facts"]["peers"] == PEERS
    assert asked.get(f"/?token={TOKEN}", headers=kept).status_code == 303  # the address is stripped again
    assert asked.get("/figures", headers={"cookie": f"peerbayes-8765={TOKEN[:-1]}"}).status_code == 401


def test_addresses_are_read_and_refused():
    assert Address.parse(None) == Address("127.0.0.1", None)
    assert Address.parse("80") == Address("127.0.0.1", 80)
    assert Address.parse("[::1]:80") == Address("::1", 80) and Address.parse("[::1]:80").loopback
    assert Address.parse("localhost:0").loopback and not Address.parse("my-host:1").loopback
    assert not Address.parse("0.0.0.0:1").loopback
    for text, host in (
        ("0.0.0.0:1", socket.gethostname()),
        ("[::]:1", socket.gethostname()),
        ("[::1]:1", "[::1]"),
    ):
        assert Access(Address.parse(text)).url(1) == f"http://{host}:1/"
    for text in ("", "x", "host:", "host:x", "::1:80", "1.2.3.4:65536", "[::1]", "-1", "٣"):
        with pytest.raises(AddressError, match="expected PORT or HOST:PORT"):
            Address.parse(text)


def test_without_a_port_the_next_free_one_is_taken_and_with_one_it_must_be_free():
    with contextlib.closing(Address().bind()) as first, contextlib.closing(Address().bind()) as second:
        assert first.getsockname()[1] != second.getsockname()[1]
        with pytest.raises(WebError, match="choose another"):
            Address("127.0.0.1", first.getsockname()[1]).bind()


def test_other_machines_need_tls_and_a_token(tmp_path):
    there = Address.parse("0.0.0.0:8765")
    assert Access.granted(Address.parse("8765")).token is None
    with pytest.raises(AddressError, match="--certificate and --key"):
        Access.granted(there)
    plain = Access.granted(there, plain_http=True)
    assert plain.token is not None and len(plain.token) >= 32 and f"?token={plain.token}" in plain.url(8765)
    assert Access.granted(there, plain_http=True).token != plain.token
    (tmp_path / "it.pem").write_text("")
    secure = Access.granted(there, certificate=tmp_path / "it.pem", key=tmp_path / "it.pem")
    assert secure.token and secure.url(1).startswith("https://")
    with pytest.raises(AddressError, match="expected both"):
        Access.granted(there, certificate=tmp_path / "it.pem")
    with pytest.raises(WebError, match="does not exist"):
        Access.granted(there, certificate=tmp_path / "none.pem", key=tmp_path / "it.pem")
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert (
        Access.granted(Address(), tmp_path / "token").token == TOKEN
    )  # also on this machine, where it is asked for
    for bad in ("", "short", "a b c d e f g h i j k l", "x" * 600):
        (tmp_path / "token").write_text(bad)
        with pytest.raises(AddressError, match="holds no token"):
            Access.granted(there, tmp_path / "token", plain_http=True)


# --- what is answered ------------------------------------------------------------------------------------


def test_nothing_but_the_pages_own_files_can_be_had(client, simulated, tmp_path):
    asked = client(tmp_path)
    for path in (
        "/static/", "/static/dashboard.html", "/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py",
        "/static/%2fetc%2fpasswd", f"/static/{LIVE_FILE}", f"/{LIVE_FILE}", "/static/dashboard.js%00",
        "/peers/-1", "/peers/x", "/peers/99999999999999999999999", "/docs", "/openapi.json",
    ):  # fmt: skip
        answer = asked.get(path)
        assert answer.status_code == 404 and len(answer.content) < 200, path


def test_files_are_kept_by_their_digest_and_compressed(client, simulated, tmp_path):
    asked = client(tmp_path)
    page = asked.get("/").text
    address = page.split('src="')[1].split('"')[0]
    assert address.startswith("static/plotly.min.js?v=")
    answer = asked.get(f"/{address}", headers={"accept-encoding": "gzip"})
    assert "immutable" in answer.headers["cache-control"] and len(answer.content) > 2_000_000
    assert answer.headers["cache-control"].startswith("private, ")  # caches of others keep nothing
    assert int(answer.headers["content-length"]) < 2_000_000
    again = asked.get(f"/{address}", headers={"if-none-match": answer.headers["etag"]})
    assert again.status_code == 304 and again.content == b""
    plain = asked.get(f"/{address}", headers={"accept-encoding": "identity"})
    assert plain.content == answer.content and gzip.decompress(gzip.compress(plain.content)) == plain.content
    assert "immutable" not in asked.get("/static/plotly.min.js?v=other").headers["cache-control"]


def test_figures_and_one_peers_curve(client, simulated, tmp_path):
    asked = client(tmp_path)
    told = asked.get("/figures").json()
    assert told["kind"] == "run" and told["facts"]["round"] == 3 and told["facts"]["rounds"] == ROUNDS
    assert {"error", "disagreement", "network", "spread", "bytes"} == set(told["figures"])
    assert {name for _, inside in told["sections"] for name, *_ in inside} == set(told["figures"])
    assert told["summary"]["bytes"] == [300.0, 300.0, 300.0]
    curve = asked.get("/peers/1").json()
    assert curve["rounds"] == [1, 2, 3] and curve["error"] == pytest.approx([1 / 2, 1 / 3, 1 / 4])
    refused = asked.get(f"/peers/{PEERS}")
    assert refused.status_code == 404 and f"expected 0 to {PEERS - 1}" in refused.text


def test_a_folder_without_a_run_is_waited_for(client, tmp_path):
    asked = client(tmp_path / "later")
    told = asked.get("/figures").json()
    assert told["kind"] == "nothing" and "holds no run" in told["facts"]["told"] and told["figures"] == {}
    assert asked.get("/peers/0").status_code == 404 and asked.get("/").status_code == 200
    made = Simulated(tmp_path / "later")
    assert asked.get("/figures").json()["facts"]["round"] == 0
    made.round()
    assert asked.get("/figures").json()["facts"]["round"] == 1
    made.file.close()


@pytest.mark.parametrize("name", [LIVE_FILE, RUN_FILE, "peer.toml"])
@pytest.mark.parametrize("content", [b"", b"damaged" * 1000, b"SQLite format 3\0" + b"\0" * 5000])
def test_damaged_files_are_told_and_looked_at_again(client, tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    asked = client(tmp_path)
    told = asked.get("/figures").json()
    assert told["kind"] == "nothing" and told["facts"]["told"]
    (tmp_path / name).unlink()
    Simulated(tmp_path).file.close()
    assert asked.get("/figures").json()["kind"] == "run"


def test_another_simulation_that_takes_the_folder_is_drawn_anew(tmp_path):
    folder = Folder(tmp_path)
    first = Simulated(tmp_path)
    first.round()
    before = folder.look()
    first.round()
    after = folder.look()
    assert after.follows(before) and b"event: update" in messages.event(after, before, 2, 0.0)
    second = Simulated(tmp_path, "crc", peers=6)
    seen = folder.look()
    assert not seen.follows(after) and b"event: reload" in messages.event(seen, after, 3, 0.0)
    assert seen.facts["strategy"] == "crc" and seen.facts["peers"] == 6
    first.file.close()
    second.file.close()


def test_figures_grow_by_what_is_new_only(simulated, tmp_path):
    folder = Folder(tmp_path)
    before = folder.look()
    assert folder.look().same(before)
    simulated.round()
    seen = folder.look()
    assert not seen.same(before)
    name, data, _, _ = messages.event(seen, before, 7, 1.0).decode().split("\n")
    told = json.loads(data.removeprefix("data: "))
    assert name == "event: update" and told["version"] == 7 and told["since"] == 6
    assert told["patch"]["since"] == 3 and told["patch"]["round"] == 4
    assert set(told["patch"]["figures"]) == {"error", "disagreement", "network", "spread", "bytes"}
    assert "figures" not in told


@pytest.mark.parametrize("peers", [1, 7, 33])
def test_many_rounds_hold_fewer_peers_whether_read_at_once_or_one_by_one(tmp_path, monkeypatch, peers):
    monkeypatch.setattr(
        "peerbayes.simulation.view.sampled", lambda peers, rounds, held=40: sampled(peers, rounds, held)
    )
    made, following = Simulated(tmp_path, peers=peers), Following(tmp_path)
    for _ in range(ROUNDS):
        made.round()
        view = following.look()
        assert (view.peers == sampled(peers, made.done, 40)).all()
        expected = 1.0 / (view.rounds[:, None] + view.peers)
        assert view.rounds.tolist() == list(range(1, made.done + 1))
        assert view.curves["test_error"] == pytest.approx(expected, rel=1e-6)
    late = Following(tmp_path).look()
    assert all((late.curves[name] == view.curves[name]).all() for name in view.curves)
    made.file.close()


# --- many viewers ----------------------------------------------------------------------------------------


def test_a_message_is_encoded_once_and_a_slow_viewer_is_told_to_load_anew(simulated, tmp_path, monkeypatch):
    encoded, event = [], messages.event
    monkeypatch.setattr(messages, "event", lambda *args: encoded.append(event(*args)) or encoded[-1])

    async def watch():
        feed = Feed(Folder(tmp_path))
        with contextlib.ExitStack() as stack:
            viewers = [stack.enter_context(feed.viewer()) for _ in range(20)]
            slow = viewers[0]
            await feed.snapshot()
            got = [await viewer.next() for viewer in viewers[1:]]
            assert len(encoded) == 1 and all(message is encoded[0] for message in got)
            simulated.round()
            await feed.snapshot()
            assert b"event: update" in await viewers[1].next()
            late = await slow.next()
            assert b"event: reload" in late and b'"version":2' in late
            simulated.round()
            await feed.snapshot()
            assert b"event: update" in await slow.next()  # it has caught up
            feed.stop()
            assert [await viewer.next() for viewer in viewers] == [None] * 20
        assert not feed.full

    asyncio.run(watch())


def test_all_who_ask_at_once_get_the_same_bytes(simulated, tmp_path):
    async def ask():
        feed = Feed(Folder(tmp_path))
        answers = await asyncio.gather(*(feed.figures() for _ in range(20)))
        assert all(answer is answers[0] for answer in answers)
        simulated.round()
        assert await feed.figures() is not answers[0]

    asyncio.run(ask())


def test_without_viewers_nobody_looks_and_without_news_there_is_a_beat(simulated, tmp_path, monkeypatch):
    monkeypatch.setattr("peerbayes.report.dashboard.feed.BEAT", 0.05)
    monkeypatch.setattr("peerbayes.report.dashboard.feed.PAUSE", 0.01)
    looks = []

    class Counted(Folder):
        def look(self):
            looks.append(1)
            return super().look()

    async def watch():
        feed = Feed(Counted(tmp_path))
        running = asyncio.ensure_future(feed.run())
        await asyncio.sleep(0.1)
        assert not looks
        with feed.viewer() as viewer:
            assert b"event: reload" in await viewer.next()
            assert b"event: beat" in await viewer.next()
        feed.stop()
        await running

    asyncio.run(watch())


def test_a_viewer_holds_one_message():
    async def hold():
        viewer = Viewer()
        for number in range(1000):
            viewer.put(b"%d" % number, b"instead")
        assert await viewer.next() == b"instead"
        viewer.put(b"next", b"instead")
        assert await viewer.next() == b"next"

    asyncio.run(hold())


# --- as a process ----------------------------------------------------------------------------------------


def stream(url):
    """A raw connection to the events, the head of the answer read."""
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    made = socket.create_connection((host, int(port)), timeout=HANG)
    made.sendall(b"GET /events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    return made


@pytest.mark.long
def test_twenty_viewers_and_one_that_never_reads(tmp_path):
    made = Simulated(tmp_path, peers=2000)
    made.round()
    with watching(tmp_path) as (process, url), contextlib.ExitStack() as stack:
        deaf = stack.enter_context(stream(url))
        viewers = [stack.enter_context(stream(url)) for _ in range(20)]
        counts = [0] * len(viewers)

        def read(place):
            with contextlib.suppress(OSError):
                while content := viewers[place].recv(1 << 16):
                    counts[place] += content.count(b"event: ")

        threads = [threading.Thread(target=read, args=(place,), daemon=True) for place in range(len(viewers))]
        for thread in threads:
            thread.start()
        until(lambda: min(counts) >= 1, "the first message")
        before = list(counts)
        for _ in range(30):
            made.round()
            time.sleep(0.02)
        until(lambda: all(now >= then + 2 for now, then in zip(counts, before, strict=True)), "updates")
        answer = httpx.get(f"{url}figures", timeout=HANG)
        assert answer.json()["facts"]["round"] == made.done
        process.send_signal(signal.SIGTERM)  # with all these streams open
        assert process.wait(30) == 0
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()
        assert deaf.recv(100)
        assert "Traceback" not in process.stderr.read()
    made.file.close()


def test_over_a_real_connection_it_is_for_this_machine_and_speaks_http_only(simulated, tmp_path):
    with watching(tmp_path) as (_, url):
        port = int(url.rstrip("/").rpartition(":")[2])
        assert url == f"http://127.0.0.1:{port}/"
        answer = httpx.get(f"{url}figures", timeout=HANG)
        assert answer.status_code == 200 and "server" not in answer.headers
        upgrade = {
            "connection": "Upgrade", "upgrade": "websocket", "sec-websocket-version": "13",
            "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
        }  # fmt: skip
        assert httpx.get(f"{url}nowhere", headers=upgrade, timeout=HANG).status_code == 404
        assert httpx.get(url, headers={"host": "evil.example"}, timeout=HANG).status_code == 421
        with pytest.raises(ConnectionRefusedError):  # another address of this machine stands for others
            socket.create_connection(("127.0.0.2", port), timeout=HANG).close()
        with socket.create_connection(("127.0.0.1", port), timeout=HANG) as line:
            line.sendall(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")  # as TLS begins
            assert line.recv(1 << 16).startswith(b"HTTP/1.1 400")


def test_a_token_and_tls_over_a_real_connection(simulated, tmp_path):
    pytest.importorskip("cryptography")
    certificate, key = self_signed(tmp_path)
    options = ("--certificate", str(certificate), "--key", str(key))
    words = [sys.executable, "-m", "peerbayes", "watch", str(tmp_path), "--address", "0.0.0.0:0", *options]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().strip()
        scheme, _, rest = url.partition("://")
        port, token = rest.rpartition(":")[2].split("/?token=")
        assert scheme == "https" and len(token) >= 32
        here = f"https://127.0.0.1:{port}"
        with httpx.Client(verify=False, timeout=HANG, follow_redirects=True) as browser:
            assert browser.get(f"{here}/figures").status_code == 401
            page = browser.get(f"{here}/?token={token}")
            assert page.status_code == 200 and str(page.url) == f"{here}/"
            assert browser.get(f"{here}/figures").json()["kind"] == "run"
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://127.0.0.1:{port}/", timeout=HANG)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0 and token not in process.stderr.read()
    finally:
        process.kill()
        process.communicate()


def self_signed(folder):
    from peerbayes.peer.identity import keys

    key, _ = keys.new_request("watched")
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

    loaded = load_pem_private_key(key, None)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "watched")])
    import datetime

    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(loaded.public_key())
        .serial_number(1).not_valid_before(now - datetime.timedelta(1)).not_valid_after(now + datetime.timedelta(1))
    )  # fmt: skip
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.hashes import SHA256

    signed = made.sign(loaded, None if isinstance(loaded, Ed25519PrivateKey) else SHA256())
    (folder / "it.crt").write_bytes(signed.public_bytes(Encoding.PEM))
    (folder / "it.key").write_bytes(key)
    return folder / "it.crt", folder / "it.key"


SIMULATION = """
import sys, time
from sklearn.datasets import load_wine
import peerbayes as pb
pb.simulate(*load_wine(return_X_y=True), peers=5, rows_per_peer=15, rounds=100_000, live=sys.argv[1],
            progress=lambda done, rounds: (print(done, flush=True), time.sleep(0.02)))
"""


@pytest.mark.long
def test_a_simulation_killed_on_the_way_can_still_be_seen_and_another_takes_its_place(client, tmp_path):
    def begin():
        return subprocess.Popen(
            [sys.executable, "-c", SIMULATION, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )

    killed = begin()
    until(lambda: int(killed.stdout.readline()) >= 5, "five rounds")
    killed.kill()
    killed.communicate()
    asked = client(tmp_path)
    told = asked.get("/figures").json()
    assert told["kind"] == "run" and told["facts"]["round"] >= 4 and not told["facts"]["finished"]
    again = asked.get("/figures").json()
    assert (
        again["version"] == told["version"] and again["facts"]["at"] == told["facts"]["at"]
    )  # nothing moves
    second = begin()
    try:
        until(lambda: asked.get("/figures").json()["version"] > told["version"], "the second simulation")
        until(lambda: 0 < asked.get("/figures").json()["facts"]["round"] < 100_000, "its rounds")
    finally:
        second.kill()
        second.communicate()


def test_a_dashboard_dies_with_whoever_started_it(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from peerbayes.report.dashboard.access import launch; "
        "made = (launching := launch(Path(sys.argv[1]), '0')).__enter__(); "
        "print(made.url, made.process.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    url, pid = parent.stdout.readline().split()
    assert httpx.get(url, timeout=HANG).status_code == 200
    with stream(url) as open_stream:
        assert open_stream.recv(100)
        parent.kill()
        parent.communicate()
        until(lambda: not alive(int(pid)), "the dashboard's end")
    with pytest.raises(httpx.TransportError):
        httpx.get(url, timeout=HANG)


def alive(pid):
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] != "Z"
    return False


def test_launched_beside_and_stopped(simulated, tmp_path):
    with launch(tmp_path, "127.0.0.1:0") as made:
        assert httpx.get(f"{made.url}figures", timeout=HANG).json()["facts"]["peers"] == PEERS
        port = made.url.rstrip("/").rpartition(":")[2]
        with pytest.raises(WebError, match="did not start"), launch(tmp_path, port):
            pass  # the port is taken
    assert made.process.returncode == 0
    with pytest.raises(AddressError, match="peerbayes watch"), launch(tmp_path, "0.0.0.0:0"):
        pass


def peerbayes(*words, **settings):
    return subprocess.run(
        [sys.executable, "-m", "peerbayes", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=HANG,
        **settings,
    )


@pytest.mark.long
def test_simulate_shows_itself_and_ends_where_there_is_no_terminal(tmp_path):
    (tmp_path / "wine.toml").write_text(
        '[data]\nname = "wine"\n[simulation]\npeers = 4\nrows_per_peer = 20\nrounds = 6\n'
    )
    done = peerbayes(
        "simulate", tmp_path / "wine.toml", "--watch", "--watch-address", "0", "--format", "json"
    )
    assert done.returncode == 0 and "Watch it at http://127.0.0.1:" in done.stderr
    assert json.loads(done.stdout)["summary"]["rounds"] == 6
    done = peerbayes("simulate", tmp_path / "wine.toml", "--watch", "--watch-address", "0.0.0.0:1")
    assert done.returncode == 2 and "expected one of this machine" in done.stderr


def test_what_makes_no_sense_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    for words, said in (
        (("--address", "nonsense"), "expected PORT or HOST:PORT"),
        (("--address", "0.0.0.0:0"), "--plain-http"),
        (("--token-file", tmp_path / "file"), "holds no token"),
    ):
        done = peerbayes("watch", tmp_path, *words)
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    assert peerbayes("watch", tmp_path / "file").returncode == 2


@pytest.mark.parametrize("part", ["starlette", "uvicorn"])
def test_a_missing_package_is_named(tmp_path, part):
    code = f"import sys; sys.modules[{part!r}] = None; from peerbayes.cli.app import app; app(['watch', sys.argv[1]])"
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, timeout=HANG
    )
    assert done.returncode == 1 and done.stderr == (
        f"peerbayes: {part} is not installed; the dashboard needs it: pip install 'peerbayes[web]'\n"
    )


# --- a peer's folder -------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path):
    """The folder of a peer with two neighbours; no process runs."""
    pytest.importorskip("cryptography")
    pytest.importorskip("msgspec")
    import pandas as pd

    from peerbayes.peer.agreement.terms import Terms
    from peerbayes.peer.loopback import Loopback

    tables = [pd.DataFrame({"x": [0.0, 1.0], "y": ["a", "b"]})] * 4
    made = Loopback.create(
        tmp_path, Terms("net", "y", rounds=9, strategy="exact"), tables, [(0, 1), (0, 2), (2, 3)]
    )
    return made.homes["peer-1"]


class Peer:
    """What a peer writes, without one."""

    def __init__(self, home):
        from peerbayes.peer.state.store import RoundRecord, Store

        self.store, self.log, self.done = Store(home.state_path), AuditLog(home.audit_path), 0
        self.log.add("peer-2", "sum columns", 50, b"d")
        self.store.add_round(RoundRecord(0, (np.zeros((2, 2)),), {}, (), ()))

    def round(self, missing=()):
        from peerbayes.peer.state.store import RoundRecord

        self.done += 1
        told = {"train_error": 1 / self.done, "soft_error": 0.5, "test_error": None, "disagreement": 0.1}
        heard = {"peer-2", "peer-3"} - set(missing)
        self.store.add_round(RoundRecord(self.done, (np.full((2, 2), self.done),), {}, heard, missing, told))
        for name in sorted(heard):
            self.log.add(name, f"round {self.done}", 100, b"d")
        self.store.note({}, {"peer-2": (time.time(), self.done, "gone" if "peer-2" in missing else "")})

    def close(self):
        self.store.close()
        self.log.close()


def test_a_peers_folder_is_followed_round_by_round(home):
    from peerbayes.peer import service

    folder = Folder(home.folder)
    seen = folder.look()
    assert (
        seen.kind == "peer"
        and seen.facts["round"] == 0
        and not seen.facts["agreed"]
        and seen.log_entries == ()
    )
    messages.figures(seen, 1, 0.0)  # there is nothing to draw yet, and that can be drawn
    with contextlib.closing(Peer(home)) as peer, service.lock(home):
        for _ in range(3):
            peer.round()
        before = Folder(home.folder).look()
        assert (
            before.facts["running"] and before.facts["round"] == 3 and before.facts["sent"]["messages"] == 7
        )
        folder = Folder(home.folder)
        before = folder.look()
        assert folder.look().same(before)
        peer.round(missing=("peer-2",))
        seen = folder.look()
        assert [(n["name"], n["state"], n["missed"]) for n in seen.facts["neighbours"]] == [
            ("peer-2", "down", 1),
            ("peer-3", "never heard", 0),
        ]
        assert seen.facts["judged"]["train_error"] == 0.25 and seen.facts["judged"]["test_error"] is None
        assert seen.view.curves["bytes"][:, 0].tolist() == [250, 450, 650, 750]
        told = json.loads(messages.event(seen, before, 2, 0.0).decode().split("data: ")[1])
        assert [line["what"] for line in told["lines"]] == ["round 4"]
        assert told["patch"]["round"] == 4 and "network" in told["replaced"]
        whole = json.loads(messages.figures(seen, 2, 0.0))
        assert {"error", "network", "disagreement", "bytes"} <= set(whole["figures"])
        assert [line["number"] for line in whole["lines"]] == list(range(1, 9))


def test_a_look_writes_nothing_reads_no_key_and_shows_who_is_revoked(home, tmp_path):
    from peerbayes.peer.identity.founder import Founder

    home.key_path.unlink()
    founder = Founder(tmp_path / "network")
    founder.revoke("peer-3")
    home.keep_roster(founder.roster_path.read_bytes())
    before = {path.name: path.read_bytes() for path in home.folder.iterdir()}
    seen = Folder(home.folder).look()
    assert {path.name: path.read_bytes() for path in home.folder.iterdir()} == before
    states = {each["name"]: each["state"] for each in seen.facts["neighbours"]}
    assert seen.kind == "peer" and states["peer-3"] == "revoked" != states["peer-2"]
    assert not seen.facts["revoked"]
    founder.revoke("peer-1")
    home.keep_roster(founder.roster_path.read_bytes())
    assert Folder(home.folder).look().facts["revoked"]


def test_runs_of_the_network_are_listed_and_the_last_that_began_is_shown(home, client):
    from peerbayes.peer.runs import Runs
    from peerbayes.peer.state.store import Store

    runs = Runs(home.folder)
    asked = client(home.folder)
    facts = asked.get("/figures").json()["facts"]
    assert facts["run"] == 1 and [(run["number"], run["state"]) for run in facts["runs"]] == [(1, "approved")]
    runs.propose()
    with contextlib.closing(Peer(home)) as peer:
        for _ in range(4):
            peer.round()
        seen = Folder(home.folder).look()
    assert seen.facts["round"] == 4
    two, one = seen.facts["runs"]
    assert (two["state"], two["proposer"], two["approved"], two["waiting"], two["participants"]) == (
        "proposed", "peer-1", ["peer-1"], ["peer-2", "peer-3", "peer-4"], 4,
    )  # fmt: skip
    assert one["proposer"] is None and one["verdict"] is None and two["sentence"].startswith("waits for")
    # All approve, as far as this folder knows, and the second run begins.
    second = runs.home.of_run(2)
    entry = runs.entry(2)
    runs.prepare(entry)
    folder = Folder(home.folder)
    folder.look()
    with contextlib.closing(Store(second.state_path)) as store:
        store.identity()
    with contextlib.closing(Peer(second)) as peer:
        peer.round()
        time.sleep(1.1)
        later = folder.look()
    assert later.facts["run"] == 2 and later.facts["round"] == 1 and not later.follows(seen)
    assert later.facts["sent"]["messages"] == 3


def test_others_do_not_see_how_good_a_run_of_private_rows_was(home):
    from peerbayes.peer.state.store import Store

    with contextlib.closing(Peer(home)) as peer:
        peer.round()
    with contextlib.closing(Store(home.state_path)) as store:
        store.keep(
            "verdict", json.dumps({"good": True, "sentences": ["1 % of 40 own rows wrong"], "problems": 0})
        )
    [own] = Folder(home.folder).look().facts["runs"]
    assert own["verdict"] is True and own["sentence"] == "" and own["state"] == "done"
    folder = Folder(home.folder, remote=True)
    folder.look()
    folder._peer._exact = False  # as with an epsilon
    folder._peer._view = None
    [seen] = folder._peer._facts(folder._peer._terms, folder._peer._roster)["runs"]
    assert seen == own | {"verdict": None}


def test_the_structure_of_a_running_simulation_is_shown(tmp_path):
    structure = Structure(("a", "b", "c"), 2, ((), (0, 2), ()), "y")
    made = LiveFile(
        tmp_path, {"strategy": "exact", "rounds": 3}, {}, np.ones(2, dtype=int), np.array([[0, 1]]), structure
    )
    folder = Folder(tmp_path)
    told = json.loads(messages.figures(folder.look(), 1, 0.0))
    made.close()
    folder._run._following.close()
    assert "structure" in told["figures"] and "error" in told["figures"]
    assert [heading for heading, _ in told["sections"]] == ["Training", "Learned model"]
    [[name, title, caption, place]] = told["sections"][1][1]
    assert (name, title, place) == (
        "structure",
        "Bayesian network structure",
        "span-6",
    ) and "class" in caption


def test_a_peer_shows_the_structure_of_its_model(home):
    from peerbayes import TAN

    with contextlib.closing(Peer(home)) as peer:
        peer.round()
        assert "structure" not in json.loads(messages.figures(Folder(home.folder).look(), 1, 0.0))["figures"]
        rng = np.random.default_rng(0)
        model = TAN().fit(rng.normal(size=(40, 4)), rng.integers(0, 2, 40))
        home.model_path.write_bytes(model.statistics_.to_bytes())
        seen = Folder(home.folder).look()
    assert seen.view.structure == Structure.of(model.schema_, model.family_)
    for told in (messages.figures(seen, 1, 0.0), messages.model(seen)):
        assert {"structure", "priors"} <= set(json.loads(told)["figures"])


def test_a_run_that_is_set_aside_begins_anew_and_a_changed_log_is_told(home):
    from peerbayes.peer import service

    folder = Folder(home.folder)
    with contextlib.closing(Peer(home)) as peer:
        peer.round()
        first = folder.look()
    service.set_aside(home)
    second = folder.look()
    assert second.facts["round"] == 0 and not second.follows(first)
    home.audit_path.write_bytes(home.audit_path.read_bytes().replace(b"50", b"51", 1))
    assert "does not match" in Folder(home.folder).look().facts["sent"]["problem"]


def test_files_of_a_peer_that_cannot_be_read_are_told_and_looked_at_again(home, client):
    """A model that is no file, and a state without its rounds."""
    with contextlib.closing(Peer(home)) as peer:
        peer.round()
    whole = home.state_path.read_bytes()
    home.model_path.mkdir()
    assert (
        client(home.folder).get("/figures").json()["facts"]["told"]
        == f"[Errno 21] Is a directory: '{home.model_path}'"
    )
    home.model_path.rmdir()
    with contextlib.closing(sqlite3.connect(home.state_path)) as database:
        database.execute("DROP TABLE rounds")
    asked = client(home.folder)
    told = asked.get("/figures").json()
    assert told["kind"] == "nothing" and told["facts"]["told"] == "no such table: rounds"
    home.state_path.write_bytes(whole)
    assert asked.get("/figures").json()["facts"]["round"] == 1


def test_a_folder_that_has_not_joined_says_what_to_do(home, client):
    home.certificate_path.unlink()
    home.roster_path.unlink()
    asked = client(home.folder)
    told = asked.get("/figures").json()
    assert told["kind"] == "nothing" and "has not joined yet" in told["facts"]["told"]


# --- the audit log as it grows ---------------------------------------------------------------------------


def test_a_log_is_read_once_and_its_chain_holds_over_all_reads(tmp_path):
    path = tmp_path / "audit.jsonl"
    tail = Tail(path)
    assert list(tail.read()) == []
    with contextlib.closing(AuditLog(path)) as log:
        for number in range(5):
            log.add("b", f"round {number}", number, b"d")
            assert [entry["bytes"] for entry in tail.read()] == [number]
    whole = path.read_bytes()
    with path.open("ab") as file:
        file.write(b'{"at": "half')
    assert list(tail.read()) == [] and tail.count == 5
    path.write_bytes(whole)  # as a peer does that starts again
    with contextlib.closing(AuditLog(path)) as log:
        log.add("c", "round 6", 6, b"d")
    assert [entry["to"] for entry in tail.read()] == ["c"]
    with path.open("ab") as file:
        file.write(b'{"at": "x", "to": "c", "what": "y", "bytes": 1, "digest": "", "chain": "00"}\n')
    with pytest.raises(PeerError, match="line 7: it does not match"):
        list(tail.read())


def test_a_log_that_is_cut_or_replaced_is_noticed(tmp_path):
    path = tmp_path / "audit.jsonl"
    with contextlib.closing(AuditLog(path)) as log:
        for number in range(3):
            log.add("b", f"round {number}", 1, b"d")
    tail = Tail(path)
    assert len(list(tail.read())) == 3
    content = path.read_bytes()
    path.write_bytes(content[:-10])
    with pytest.raises(PeerError, match="was changed"):
        list(tail.read())
    path.write_bytes(content)
    other = tmp_path / "other"
    other.write_bytes(content)
    other.replace(path)
    with pytest.raises(PeerError, match="another file"):
        list(tail.read())


def test_a_look_that_fails_does_not_end_the_dashboard(monkeypatch, caplog):
    monkeypatch.setattr(feed_module, "BEAT", 0.01)
    looks = []

    class Watched:
        def look(self):
            looks.append(1)
            raise RuntimeError("a bug")

    async def watch():
        feed = Feed(Watched())
        task = asyncio.create_task(feed.run())
        with feed.viewer():
            async with asyncio.timeout(30):
                while len(looks) < 3:
                    await asyncio.sleep(0.01)
            feed.stop()
            await asyncio.wait_for(task, HANG)

    asyncio.run(watch())
    assert "reading the folder failed" in caplog.text
