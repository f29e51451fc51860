"""The dashboard's web server: which requests it takes, its page, files and events, and the process that serves them."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import hmac
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import parse_qs

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request, cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from peerbayes.report import style
from peerbayes.report.dashboard.access import Access, names_loopback
from peerbayes.report.dashboard.feed import Feed, Folder, model, peer

# --- access control and security headers of the dashboard: applied to every request before anything else

# plotly.js sets style attributes, and adds rules to its own sheets: the page has these, empty, so that it adds none.
EMPTY_SHEET = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    f"style-src 'self' {EMPTY_SHEET}; style-src-attr 'unsafe-inline'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
METHODS = ("GET", "HEAD")


@dataclass(frozen=True)
class Guard:
    """Passes permitted requests to `app`, and sets the same headers on every response.

    Without a token, only requests that name this machine pass. With one, the browser sends it once in the URL
    (`/?token=…`) and then in a cookie, so that it does not stay in the browser's history.
    """

    app: ASGIApp
    token: str | None
    port: int
    secure: bool = False
    """Whether browsers connect over TLS."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] != "http":
            return await send({"type": "websocket.close", "code": 1008})

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        answer = self.refusal(scope) or self.app
        return await answer(scope, receive, with_headers)

    def refusal(self, scope: Scope) -> Response | None:
        """Return the response to a request that may not pass or must show the token; None where it may pass."""
        headers = Headers(scope=scope)
        if scope["method"] not in METHODS:
            return text_response(405, "This page is read-only.", {"Allow": ", ".join(METHODS)})
        if self.token is None and not names_loopback(headers.get("host", "")):
            return text_response(
                421, "This dashboard can only be opened on its own machine, as http://127.0.0.1."
            )
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and scope["path"] != "/":
            return text_response(403, "Other sites may not read this dashboard.")
        return None if self.token is None else self._check_token(scope, headers, self.token)

    @property
    def cookie(self) -> str:
        """The cookie's name; it contains the port, because browsers share cookies between ports."""
        return f"peerbayes-{self.port}"

    def _check_token(self, scope: Scope, headers: Headers, token: str) -> Response | None:
        """Return None where the cookie holds the token; a redirect that sets it where the URL does; else a refusal."""
        cookie = cookie_parser(headers.get("cookie", "")).get(self.cookie, "")
        if equal(cookie, token) and b"token=" not in scope["query_string"]:
            return None
        parameter = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] != "/" or not equal(parameter, token):
            return text_response(
                401, "This dashboard needs its token: open the address that `peerbayes` printed."
            )
        answer = RedirectResponse("/", 303)
        answer.set_cookie(self.cookie, token, path="/", secure=self.secure, httponly=True, samesite="strict")
        return answer


def equal(text: str, token: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(text.encode(), token.encode())


def text_response(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    """Return a short response in plain text."""
    return PlainTextResponse(f"{text}\n", status, headers)


# --- the static files of a page, kept in memory under fixed names: no other file can be requested

TYPES = {".js": "text/javascript", ".css": "text/css"}
YEAR = 365 * 24 * 3600


@dataclass(frozen=True, eq=False)
class File:
    """One static file."""

    content: bytes
    media: str

    @classmethod
    def read(cls, path: Path) -> File:
        return cls(path.read_bytes(), TYPES[path.suffix])

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()[:16]

    @cached_property
    def small(self) -> bytes:
        """The compressed content: plotly.js has five megabytes."""
        return gzip.compress(self.content, 6, mtime=0)

    def answer(self, request: Request) -> Response:
        """Return the response; a browser that requests this version by its digest may cache it."""
        forever = request.query_params.get("v") == self.digest
        headers = {
            "ETag": f'"{self.digest}"',
            "Cache-Control": f"private, max-age={YEAR}, immutable" if forever else "no-cache",
            "Vary": "Accept-Encoding",
        }
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(self.content, headers=headers, media_type=self.media)
        return Response(self.small, headers={**headers, "Content-Encoding": "gzip"}, media_type=self.media)


def page(template: str, files: Mapping[str, File], sheets: Sequence[str] = ()) -> str:
    """Return the page with its files named by digest, so that they can be cached, and with empty style sheets."""
    for name, file in files.items():
        template = template.replace(f'"static/{name}"', f'"static/{name}?v={file.digest}"')
    styles = "".join(f'<style id="{name}"></style>\n' for name in sheets)
    return template.replace("</head>", f"{styles}</head>")


# --- the routes of the dashboard: its page, static files, figures, one peer's curve, and the stream of updates

HERE = Path(__file__).parent / "static"

JSON, EVENTS = "application/json", "text/event-stream"


def application(feed: Feed, token: str | None, port: int, secure: bool = False) -> ASGIApp:
    """Return the dashboard's application behind its guard."""
    files = static_files()
    sheets = style.style_ids(files["plotly.min.js"].content.decode())
    html = page((HERE / "dashboard.html").read_text(encoding="utf-8"), files, sheets)

    def home(request: Request) -> Response:
        return HTMLResponse(html)

    async def static(request: Request) -> Response:
        file = files.get(request.path_params["name"])
        if file is None:
            raise HTTPException(404, "There is no such file.")
        return await asyncio.to_thread(file.answer, request)

    async def figures(request: Request) -> Response:
        return Response(await feed.figures(), media_type=JSON)

    async def model_figures(request: Request) -> Response:
        snapshot = await feed.snapshot()
        return Response(await asyncio.to_thread(model, snapshot), media_type=JSON)

    async def one_peer(request: Request) -> Response:
        snapshot, number = await feed.snapshot(), request.path_params["number"]
        if snapshot.view is None or not 0 <= number < snapshot.view.peer_count:
            peers = "no peer yet" if snapshot.view is None else f"0 to {snapshot.view.peer_count - 1}"
            raise HTTPException(404, f"There is no peer {number}; expected {peers}.")
        return Response(await asyncio.to_thread(peer, snapshot, number), media_type=JSON)

    async def events(request: Request) -> Response:
        if feed.full:
            raise HTTPException(503, "Too many viewers are connected; close another page first.")
        if request.method == "HEAD":
            return Response(media_type=EVENTS)
        return StreamingResponse(stream(feed), media_type=EVENTS)

    router = Starlette(
        routes=[
            Route("/", home),
            Route("/static/{name}", static),
            Route("/figures", figures),
            Route("/model", model_figures),
            Route("/peers/{number:int}", one_peer),
            Route("/events", events),
        ],
        exception_handlers={HTTPException: error_response, Exception: error_response},
    )
    return Guard(router, token, port, secure)


async def stream(feed: Feed) -> AsyncIterator[bytes]:
    """Yield updates from now on, as server-sent events."""
    with feed.viewer() as viewer:
        yield await feed.greeting()
        while (message := await viewer.next()) is not None:
            yield message


def static_files() -> dict[str, File]:
    """Return the dashboard's files, the report's, and plotly.js from plotly's package, by name."""
    ours = [HERE / "dashboard.js", HERE / "dashboard.css"]
    shared = [style.STATIC / "figures.js", style.STATIC / "page.css", style.path()]
    return {path.name: File.read(path) for path in ours + shared}


def error_response(request: Request, error: Exception) -> Response:
    """Return an error as a line of text."""
    if isinstance(error, HTTPException):
        return text_response(error.status_code, error.detail)
    return text_response(500, "This request failed; see the output of the dashboard's process.")


# --- the process: it listens, announces its URL, and ends on a signal

NICE = 10  # computations on this machine have priority
SHUTDOWN_TIMEOUT = 3  # seconds for open responses to end


class Server(uvicorn.Server):
    """uvicorn that leaves signals to `serve`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(
    folder: Path,
    access: Access,
    ready: Callable[[str], None],
    attached: bool = False,
    others: Sequence[Path] = (),
) -> None:
    """Serve a folder, and others beside it, until SIGINT or SIGTERM.

    Attached: also until standard input ends, with the parent process.
    """
    os.nice(NICE)
    with contextlib.closing(access.address.bind()) as listener:
        asyncio.run(_serve(Folder(folder, access.remote, others), access, listener, ready, attached))


async def _serve(
    folder: Folder, access: Access, listener: socket.socket, ready: Callable[[str], None], attached: bool
) -> None:
    port = listener.getsockname()[1]
    feed = Feed(folder)
    config = uvicorn.Config(
        application(feed, access.token, port, access.secure),
        log_level="warning", access_log=False, lifespan="off", server_header=False, ws="none", proxy_headers=False,
        ssl_certfile=access.certificate, ssl_keyfile=access.key, timeout_graceful_shutdown=SHUTDOWN_TIMEOUT,
    )  # fmt: skip
    config.load()  # reads the certificate: its errors come before the URL
    server, loop = Server(config), asyncio.get_running_loop()

    def stop() -> None:
        server.should_exit = True
        feed.stop()  # uvicorn waits for open streams

    def stop_at_end_of_input() -> None:
        if not os.read(0, 1024):
            loop.remove_reader(0)
            stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    if attached:
        loop.add_reader(0, stop_at_end_of_input)
    reading = asyncio.ensure_future(feed.run())
    reading.add_done_callback(
        lambda _: stop()
    )  # a dashboard that cannot read must not go on showing old data
    ready(access.url(port))  # the socket listens already: browsers wait for the server
    try:
        await server.serve([listener])
    finally:
        reading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reading
