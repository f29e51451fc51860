"""A small dataset, the server that it is downloaded from, and folders to keep it in."""

import dataclasses
import io
import threading
import zipfile
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pandas as pd
import pytest

from peerbayes.data.datasets.entries import Entry, Expected, Member, Origin, delimited
from peerbayes.data.datasets.storage import Places

TINY = pd.DataFrame(
    {
        "a": np.arange(40) / 8,
        "b": ["x", "y", "z", "NA"] * 10,  # "NA" is text, not a missing value
        "out": (["p"] + ["n"] * 3) * 10,
    }
)
TEXT = TINY.to_csv(index=False).encode()
EXPECTED = Expected(40, ("a", "b"), "out", 2, ("p", 0.25), frozenset("b"))


def zipped(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/").replace("_dot_", "."), content)
    return buffer.getvalue()


ARCHIVE = zipped(folder__tiny_dot_csv=TEXT, Index=b"nothing")


def tiny(url=None, sha256=None, **changes):
    """A small dataset, to be downloaded from `url`."""
    parts = (Member(("tiny.csv",), sha256),)
    origin = None if url is None else Origin(url, delimited(","), parts)
    entry = Entry(
        "tiny",
        ("the tiny one",),
        EXPECTED,
        "Few rows.",
        "https://example.org/tiny",
        "CC0",
        "tiny.parquet",
        origin,
    )
    return dataclasses.replace(entry, **changes)


class Server(ThreadingHTTPServer):
    """Answers by path: bytes, a status, or a function of the handler; counts what it was asked for."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.asked, self.release = {}, Counter(), threading.Event()

    def url(self, path, answer):
        self.answers[f"/{path}"] = answer
        return f"http://127.0.0.1:{self.server_port}/{path}"

    def handle_error(self, request, client_address):
        """Clients that go away are part of the tests."""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked[self.path] += 1
        answer = self.server.answers[self.path]
        if callable(answer):
            answer(self)
        elif isinstance(answer, int):
            self.send_error(answer)
        else:
            self.head(len(answer))
            self.wfile.write(answer)

    def head(self, length, status=200, **headers):
        self.send_response(status)
        if length is not None:
            self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.release.set()
        running.shutdown()
        thread.join()


@pytest.fixture
def held(tmp_path, monkeypatch):
    """A folder and a cache of the test's own, and no waiting between attempts."""
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.setenv("PEERBAYES_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PEERBAYES_DATA", raising=False)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr("peerbayes.data.datasets.storage.sleep", lambda _: None)
    return Places(folder, tmp_path / "cache")
