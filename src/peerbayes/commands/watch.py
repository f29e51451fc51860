"""`peerbayes watch`: a dashboard of a run or a peer, during the run or afterwards."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from peerbayes.commands.shared import exit_on_error
from peerbayes.web.access import Access
from peerbayes.web.address import Address
from peerbayes.web.errors import web_parts_needed


def watch(
    folder: Annotated[Path, typer.Argument(help="The folder of a run (`simulate --out`) or of a peer.")],
    address: Annotated[
        str | None,
        typer.Option(help="[HOST:]PORT to listen on; default 127.0.0.1:8765 or the next free port."),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the access token to use instead of a new one.")
    ] = None,
    certificate: Annotated[Path | None, typer.Option(help="A PEM file with a certificate for TLS.")] = None,
    key: Annotated[Path | None, typer.Option(help="A PEM file with the certificate's key.")] = None,
    plain_http: Annotated[
        bool,
        typer.Option("--plain-http", help="Allow plain HTTP on an address that other machines can reach."),
    ] = False,
    open_it: Annotated[bool, typer.Option("--open", help="Open the dashboard in a browser.")] = False,
    attached: Annotated[
        bool, typer.Option("--attached", hidden=True, help="End when standard input does.")
    ] = False,
) -> None:
    """Show a run or a peer in a browser, live. It is read-only; access from other machines requires a token."""
    with exit_on_error(), web_parts_needed():
        access = Access.granted(Address.parse(address), token_file, certificate, key, plain_http)
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} is a file; expected the folder of a run or a peer")
        if not access.address.loopback and not access.secure:
            print(
                "peerbayes: this is plain HTTP: anyone on the network path can read the token and the figures. Use a "
                "TLS proxy, or give --certificate and --key",
                file=sys.stderr,
            )
        from peerbayes.web.serve import serve

        def ready(url: str) -> None:
            print(url, flush=True)
            if open_it:
                webbrowser.open(url)

        serve(folder, access, ready, attached)
