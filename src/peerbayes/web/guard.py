"""Access control and security headers of the dashboard: applied to every request before anything else."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from peerbayes.web.address import names_loopback

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
