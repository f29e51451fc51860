"""`peerbayes watch`: a run or a peer in a browser, while it goes on or afterwards."""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from peerbayes.commands.shared import explained
from peerbayes.web.access import Access
from peerbayes.web.address import Address
from peerbayes.web.errors import web_parts_needed


def watch(
    folder: Annotated[Path, typer.Argument(help="A run's folder (`simulate --out`), or a peer's.")],
    address: Annotated[
        str | None, typer.Option(help="[HOST:]PORT to listen on; 127.0.0.1:8765, or the next free port.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="Ask browsers for the token in this file, instead of a new one.")
    ] = None,
    certificate: Annotated[Path | None, typer.Option(help="A PEM file: speak TLS with it.")] = None,
    key: Annotated[Path | None, typer.Option(help="The PEM file of the certificate's key.")] = None,
    plain_http: Annotated[
        bool, typer.Option("--plain-http", help="No TLS on an address other machines can reach.")
    ] = False,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    attached: Annotated[
        bool, typer.Option("--attached", hidden=True, help="End when standard input does.")
    ] = False,
) -> None:
    """Show a run or a peer in a browser, as it goes on. It only reads; from other machines it asks for a token."""
    with explained(), web_parts_needed():
        access = Access.granted(Address.parse(address), token_file, certificate, key, plain_http)
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} is a file; expected the folder of a run or a peer")
        if not access.address.loopback and not access.secure:
            print(
                "peerbayes: this is plain HTTP: whoever is on the way reads the token and the figures. Put TLS in "
                "front, or give --certificate and --key",
                file=sys.stderr,
            )
        from peerbayes.web.serve import serve

        def ready(url: str) -> None:
            print(url, flush=True)
            if open_it:
                webbrowser.open(url)

        serve(folder, access, ready, attached)
