"""Who may see the dashboard, and what a browser may do with it: checked before anything else, on every request."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from peerbayes.web.address import names_loopback

# plotly.js sets style attributes, and adds rules to its own sheets: the page has these, empty, so that none is added.
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
    """Lets through what may pass to `app`, and puts the same headers on every answer.

    Without a token only requests that name this machine pass. With one, it is shown once in the address (`/?token=…`)
    and kept in a cookie, so that it does not stay in the browser's history.
    """

    app: ASGIApp
    token: str | None
    port: int
    secure: bool = False
    """Whether browsers come over TLS."""

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
        """The answer to whoever may not pass, or must show the token; None: let it through."""
        headers = Headers(scope=scope)
        if scope["method"] not in METHODS:
            return told(405, "This page can only be read.", {"Allow": ", ".join(METHODS)})
        if self.token is None and not names_loopback(headers.get("host", "")):
            return told(421, "This dashboard is for its own machine: open it as http://127.0.0.1.")
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and scope["path"] != "/":
            return told(403, "Other sites may not read this dashboard.")
        return None if self.token is None else self._shown(scope, headers, self.token)

    @property
    def cookie(self) -> str:
        """Its name; browsers do not tell ports apart, so the name does."""
        return f"peerbayes-{self.port}"

    def _shown(self, scope: Scope, headers: Headers, token: str) -> Response | None:
        """Whether the token was shown, in the cookie or just now in the address."""
        kept = cookie_parser(headers.get("cookie", "")).get(self.cookie, "")
        if same(kept, token) and b"token=" not in scope["query_string"]:
            return None
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] != "/" or not same(given, token):
            return told(401, "This dashboard needs its token: open the address that `peerbayes` printed.")
        answer = RedirectResponse("/", 303)
        answer.set_cookie(self.cookie, token, path="/", secure=self.secure, httponly=True, samesite="strict")
        return answer


def same(given: str, token: str) -> bool:
    """Compared in a time that tells nothing of the token."""
    return hmac.compare_digest(given.encode(), token.encode())


def told(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    """A short page."""
    return PlainTextResponse(f"{text}\n", status, headers)
