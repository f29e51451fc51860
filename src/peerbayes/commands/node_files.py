"""`peerbayes node request` and `peerbayes node join`: how a peer's folder comes to be."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from peerbayes.commands.shared import explained
from peerbayes.peers.errors import parts_needed


def request(
    folder: Annotated[Path, typer.Argument(help="The peer's folder: its key never leaves it.")],
    name: Annotated[str, typer.Option(help="Lower-case letters, digits, '-'.")],
    address: Annotated[str, typer.Option(help="host:port where neighbours reach this peer.")],
    data: Annotated[str, typer.Option(help="A .csv or .parquet file, or a SQLAlchemy URL.")],
    query: Annotated[str | None, typer.Option(help="The SQL that gives the rows, with a URL.")] = None,
    listen: Annotated[
        str | None, typer.Option(help="host:port on this machine; else the address's port, everywhere.")
    ] = None,
    hold_out: Annotated[
        float, typer.Option(help="Share of the rows to test the model on here, and not to learn from.")
    ] = 0.0,
) -> None:
    """Make a key and a request for a certificate."""
    with explained(), parts_needed():
        from peerbayes.peers.home import Home

        home = Home.create(folder, name, address, data, query, listen, hold_out)
    print(f"{name} is in {folder}:")
    print("  peer.key   its private key: never leaves this machine")
    print("  peer.csr   its request for a certificate: for the network's founder")
    print("  peer.toml  its settings: its data, where it listens; change them at any time")
    print(
        f"Next: send {home.request_path} and the address {address} to the founder, who answers with an invitation;"
    )
    print(f"then `peerbayes node join {folder} {name}.invitation`")


def join(
    folder: Annotated[Path, typer.Argument(help="The peer's folder.")],
    file: Annotated[Path, typer.Argument(help="An invitation, or a newer roster.json.")],
) -> None:
    """Take an invitation from the founder, or a newer roster."""
    with explained(), parts_needed():
        from peerbayes.peers.home import Home
        from peerbayes.peers.identity import fingerprint

        home = Home(folder)
        roster = home.join(file.read_bytes())
        settings, authority = home.settings(), fingerprint(home.authority_path.read_bytes())
    known = settings.name in (member.name for member in roster.members)
    neighbours = ", ".join(roster.neighbours(settings.name)) if known else ""
    state = "closed" if roster.closed else "still open"
    print(
        f"{settings.name} holds roster {roster.version} of {roster.network}: {len(roster.members)} members, {state}"
    )
    if settings.name in roster.revoked:
        print(f"{settings.name} was revoked: nobody listens to it any more. Ask the founder")
        return
    print(f"Its neighbours: {neighbours or 'nobody yet'}")
    print(f"Compare the authority's fingerprint with the founder's on another way: {authority}")
    reached = roster.member(settings.name).address
    if reached != settings.address:
        print(f"Note: neighbours will look for it at {reached}; {home.settings_path} says {settings.address}")
    print(
        f"Next: read {home.agreement_path}, then `peerbayes node check {folder}` and `peerbayes node run {folder}`"
    )
