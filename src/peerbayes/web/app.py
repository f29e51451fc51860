"""What can be asked of a dashboard: its page, its files, the figures, one peer's curve, and what is new."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from peerbayes import report
from peerbayes.report import plotlyjs
from peerbayes.web.feed import Feed
from peerbayes.web.files import File, page
from peerbayes.web.guard import Guard, told
from peerbayes.web.messages import model, peer

HERE, REPORT = Path(__file__).parent / "static", Path(report.__file__).parent / "static"

JSON, EVENTS = "application/json", "text/event-stream"


def application(feed: Feed, token: str | None, port: int, secure: bool = False) -> ASGIApp:
    """The dashboard behind its guard."""
    files = static_files()
    sheets = plotlyjs.style_ids(files["plotly.min.js"].content.decode())
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
        seen = await feed.seen()
        return Response(await asyncio.to_thread(model, seen), media_type=JSON)

    async def one_peer(request: Request) -> Response:
        seen, number = await feed.seen(), request.path_params["number"]
        if seen.view is None or not 0 <= number < seen.view.nodes:
            known = "no peer yet" if seen.view is None else f"0 to {seen.view.nodes - 1}"
            raise HTTPException(404, f"There is no peer {number}; expected {known}.")
        return Response(await asyncio.to_thread(peer, seen, number), media_type=JSON)

    async def events(request: Request) -> Response:
        if feed.full:
            raise HTTPException(503, "Too many are watching; close a page somewhere.")
        if request.method == "HEAD":
            return Response(media_type=EVENTS)
        return StreamingResponse(stream(feed), media_type=EVENTS)

    inside = Starlette(
        routes=[
            Route("/", home),
            Route("/static/{name}", static),
            Route("/figures", figures),
            Route("/model", model_figures),
            Route("/peers/{number:int}", one_peer),
            Route("/events", events),
        ],
        exception_handlers={HTTPException: plainly, Exception: plainly},
    )
    return Guard(inside, token, port, secure)


async def stream(feed: Feed) -> AsyncIterator[bytes]:
    """What is new, from the moment of asking on."""
    with feed.viewer() as viewer:
        yield await feed.greeting()
        while (message := await viewer.next()) is not None:
            yield message


def static_files() -> dict[str, File]:
    """Ours, the report's, and plotly.js from plotly's own package."""
    ours = (HERE / "dashboard.js", HERE / "dashboard.css", REPORT / "figures.js", REPORT / "page.css")
    return {path.name: File.read(path) for path in (*ours, plotlyjs.path())}


def plainly(request: Request, error: Exception) -> Response:
    """Errors as a line of text."""
    if isinstance(error, HTTPException):
        return told(error.status_code, error.detail)
    return told(500, "This could not be shown; the dashboard's own output says why.")
