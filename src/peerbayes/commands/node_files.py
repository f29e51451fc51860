"""`peerbayes node request` and `peerbayes node join`: set up a peer's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from peerbayes.commands.shared import exit_on_error
from peerbayes.peers.errors import parts_needed


def request(
    folder: Annotated[Path, typer.Argument(help="The peer's folder to create; its key never leaves it.")],
    name: Annotated[str, typer.Option(help="The peer's name: lower-case letters, digits, '-'.")],
    address: Annotated[str, typer.Option(help="host:port at which neighbours reach this peer.")],
    data: Annotated[str, typer.Option(help="A .csv or .parquet file, or a SQLAlchemy URL.")],
    query: Annotated[
        str | None, typer.Option(help="The SQL query for the rows, if the data is a URL.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(help="host:port to listen on; default: the port of the address, on all interfaces."),
    ] = None,
    hold_out: Annotated[
        float, typer.Option(help="Share of the rows to hold out for testing the model here.")
    ] = 0.0,
) -> None:
    """Create a peer's folder with a key and a certificate request."""
    with exit_on_error(), parts_needed():
        from peerbayes.peers.home import Home

        home = Home.create(folder, name, address, data, query, listen, hold_out)
    print(f"Created {name} in {folder}:")
    print("  peer.key   its private key: never leaves this machine")
    print("  peer.csr   its certificate request: for the network's founder")
    print("  peer.toml  its settings: its data and the address it listens on; can be changed at any time")
    print(
        f"Next: send {home.request_path} and the address {address} to the founder, who sends an invitation;"
    )
    print(f"then run `peerbayes node join {folder} {name}.invitation`")


def join(
    folder: Annotated[Path, typer.Argument(help="The peer's folder.")],
    file: Annotated[Path, typer.Argument(help="An invitation, or a newer roster.json.")],
) -> None:
    """Join a network with the founder's invitation, or update the roster."""
    with exit_on_error(), parts_needed():
        from peerbayes.peers.home import Home
        from peerbayes.peers.identity import fingerprint

        home = Home(folder)
        roster = home.join(file.read_bytes())
        settings, authority = home.settings(), fingerprint(home.authority_path.read_bytes())
    is_member = settings.name in (member.name for member in roster.members)
    neighbours = ", ".join(roster.neighbours(settings.name)) if is_member else ""
    state = "closed" if roster.closed else "still open"
    print(
        f"{settings.name} has roster version {roster.version} of {roster.network}: "
        f"{len(roster.members)} members, {state}"
    )
    if settings.name in roster.revoked:
        print(f"{settings.name} was revoked: the other members ignore it. Ask the founder")
        return
    print(f"Neighbours: {neighbours or 'none yet'}")
    print(f"Compare the authority's fingerprint with the founder's over another channel: {authority}")
    roster_address = roster.member(settings.name).address
    if roster_address != settings.address:
        print(
            f"Note: neighbours will connect to {roster_address}, but {home.settings_path} says {settings.address}"
        )
    print(
        f"Next: read {home.agreement_path}, then `peerbayes node check {folder}` and `peerbayes node run {folder}`"
    )
