"""The static files of a page, kept in memory under fixed names: no other file can be requested."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
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
    return template.replace(
        "</head>", "".join(f'<style id="{name}"></style>\n' for name in sheets) + "</head>"
    )
