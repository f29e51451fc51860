"""`peerbayes network`: found a private network, let peers in and out, see who is in.

Exit codes: 0 done, 1 failed or different, 2 makes no sense.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peerbayes.commands.shared import explained, known_format
from peerbayes.files import write
from peerbayes.peers.errors import TermsError, parts_needed
from peerbayes.peers.facts import Facts
from peerbayes.peers.terms import Limits, Privacy, Terms
from peerbayes.text import printable

if TYPE_CHECKING:
    from peerbayes.peers.roster import Roster

app = typer.Typer(
    help="A private network: its authority, its agreement, its members.",
    no_args_is_help=True,
    add_completion=False,
)

Folder = Annotated[Path, typer.Option("--network", help="The network's folder, as `new` made it.")]


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(help="Where the authority's key and the rest will be.")],
    terms: Annotated[Path | None, typer.Option(help="An agreement to take, instead of the options.")] = None,
    name: Annotated[str | None, typer.Option(help="The network's name: letters, digits, '-'.")] = None,
    label: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    feature: Annotated[
        list[str] | None,
        typer.Option(
            help="COLUMN=auto, continuous or discrete; again for each. None: all columns. With --epsilon also what is "
            "known of it: AGE=continuous:0..100 (its range), AGE=continuous:40+-15 (mean and sd), SEX=discrete:f,m."
        ),
    ] = None,
    family: Annotated[
        str | None, typer.Option(help="What a class looks like: naive-bayes, qda, lda.")
    ] = None,
    strategy: Annotated[str | None, typer.Option(help="How peers learn: exact, auto, relay, crc, …")] = None,
    start: Annotated[str | None, typer.Option(help="uniform, marginal or ml.")] = None,
    rounds: Annotated[int | None, typer.Option(help="How many rounds.")] = None,
    lr: Annotated[float | None, typer.Option(help="The learning rate.")] = None,
    clip: Annotated[float | None, typer.Option(help="In standard deviations; 0: no clipping.")] = None,
    deadline: Annotated[float | None, typer.Option(help="Seconds a round waits for neighbours.")] = None,
    quorum: Annotated[float | None, typer.Option(help="Share of neighbours that a deadline needs.")] = None,
    rows: Annotated[
        int | None, typer.Option(help="Fewest rows a peer may bring; few can be guessed.")
    ] = None,
    secure_sum: Annotated[
        bool | None,
        typer.Option("--secure-sum", help="Neighbours learn sums of three or more messages, and no message."),
    ] = None,
    classes: Annotated[
        str | None, typer.Option(help="All values of the label: a,b. --epsilon needs them.")
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Differential privacy: how much anybody may learn of one row; 4 is common. None: no noise."
        ),
    ] = None,
    delta: Annotated[float | None, typer.Option(help="The probability with which that may fail.")] = None,
    edge_noise: Annotated[
        float | None, typer.Option(help="Noise that neighbours share, beside their own; 3 is a good number.")
    ] = None,
    min_rows: Annotated[
        int | None, typer.Option(help="With --epsilon, a peer with fewer takes no part.")
    ] = None,
    average_rows: Annotated[
        float | None,
        typer.Option(help="With --epsilon, rows of a peer on average; else bought with some of it."),
    ] = None,
    peers: Annotated[int | None, typer.Option(help="Close when so many are in.")] = None,
) -> None:
    """Make an authority, an agreement and an empty roster."""
    with explained(), parts_needed():
        from peerbayes.peers.founder import Founder
        from peerbayes.peers.identity import fingerprint
        from peerbayes.toml import text_of

        given = {
            "network": name, "label": label, "family": family, "strategy": strategy, "start": start, "rounds": rounds,
            "lr": lr, "clip": clip, **_features(feature), "classes": None if classes is None else _values(classes),
        }  # fmt: skip
        limits = {"deadline": deadline, "quorum": quorum, "rows": rows}
        hidden: dict[str, Any] = {
            "secure_sum": secure_sum, "epsilon": epsilon, "delta": delta, "edge_noise": edge_noise,
            "min_rows": min_rows, "rows": average_rows,
        }  # fmt: skip
        hidden = {key: value for key, value in hidden.items() if value is not None}
        if terms is None:
            agreement = _terms(given, limits, Privacy(**hidden)).to_toml()
        elif all(value is None for value in (*given.values(), *limits.values(), *hidden.values())):
            Terms.read(terms)  # errors name the founder's file, not the copy
            agreement = text_of(terms)
        else:
            raise ValueError("--terms and options of the agreement were given; expected one of the two")
        founder = Founder.create(folder, agreement, peers)
        network, authority = founder.terms().network, fingerprint(founder.authority())
    print(f"{network} is founded in {folder}:")
    print(
        "  authority.key   the authority's key: whoever has it decides who is in; keep it, show it to nobody"
    )
    print(f"  authority.crt   the authority's certificate, {authority}")
    print(
        "  agreement.toml  what will be learnt, and how; change it now if need be, not after the first invitation"
    )
    print("  roster.json     the members: none yet")
    print(
        "Next: each peer runs `peerbayes node request FOLDER --name NAME --address HOST:PORT --data FILE` and sends"
    )
    print(
        f"its peer.csr; then `peerbayes network invite NAME --request peer.csr --address HOST:PORT --network {folder}`"
    )


@app.command()
def invite(
    name: Annotated[str, typer.Argument(help="The peer's name, as in its request.")],
    request: Annotated[Path, typer.Option(help="The peer.csr that it sent.")],
    address: Annotated[str, typer.Option(help="host:port where its neighbours reach it.")],
    links: Annotated[
        str | None, typer.Option(help="Its neighbours: a,b. Else all, or the four with the fewest.")
    ] = None,
    network: Folder = Path(),
    out: Annotated[Path | None, typer.Option(help="Where the invitation goes; else NAME.invitation.")] = None,
    again: Annotated[bool, typer.Option("--again", help="A member's new certificate and address.")] = False,
) -> None:
    """Let a peer in: sign its request, add it to the roster, write its invitation."""
    with explained(), parts_needed():
        from peerbayes.peers.founder import Founder
        from peerbayes.peers.identity import fingerprint

        founder, target = Founder(network), out or Path(f"{name}.invitation")
        named = None if links is None else [part.strip() for part in links.split(",") if part.strip()]
        invitation = founder.invite(name, request.read_bytes(), address, named, again)
        write(target, invitation.pack())
        roster, wanted = invitation.verified_roster(), founder.peers()
        authority = fingerprint(founder.authority())
    neighbours = ", ".join(roster.neighbours(name)) or "nobody yet"
    print(f"{name} at {address} is in {roster.network}, linked to {neighbours}; roster {roster.version}")
    print(f"Written: {target}. Send it to {name}, who runs `peerbayes node join FOLDER {target.name}`")
    print(f"and compares the authority's fingerprint with yours on another way: {authority}")
    if roster.closed:
        print(
            f"The roster is closed with {len(roster.members)} members: they can run. Members that joined earlier hear"
        )
        print(f"of it from those that join now, or by `peerbayes node join FOLDER {founder.roster_path}`.")
        _warn(roster, founder.terms(), network)
    else:
        print(
            f"{len(roster.members)} of {wanted} are in."
            if wanted
            else "Next: invite the others, then `close`."
        )


@app.command()
def close(network: Folder = Path()) -> None:
    """Let nobody else in, so that a run can start."""
    with explained(), parts_needed():
        from peerbayes.peers.founder import Founder

        founder = Founder(network)
        roster, terms = founder.close(), founder.terms()
    print(f"{roster.network} is closed with {len(roster.members)} members; roster {roster.version}")
    _warn(roster, terms, network)
    _hand_over(network, roster)


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(help="A member that nobody shall listen to any more.")],
    network: Folder = Path(),
) -> None:
    """Shut a member out, for good."""
    with explained(), parts_needed():
        from peerbayes.peers.founder import Founder

        roster = Founder(network).revoke(name)
    print(f"{name} is revoked in {roster.network}; roster {roster.version}")
    parts = roster.parts(without=roster.revoked)
    if len(parts) > 1:
        shown = "; ".join(" ".join(part) for part in parts)
        print(
            f"Without it the network falls into {len(parts)} parts, which will not hear of each other: {shown}"
        )
    _hand_over(network, roster)


@app.command()
def inspect(
    path: Annotated[Path, typer.Argument(help="A folder, an invitation, a roster or an agreement.")] = Path(),
    other: Annotated[Path | None, typer.Argument(help="Another one, to compare with.")] = None,
    form: Annotated[str, typer.Option("--format", help="table or json.")] = "table",
) -> None:
    """Who is in and what was agreed on; or how two of those differ (then the exit code is 1)."""
    with explained(), parts_needed():
        from peerbayes.commands.network_report import lines
        from peerbayes.peers.inspection import Inspection

        known_format(form)
        found = Inspection.of(path)
        if other is None:
            shown = "\n".join(map(printable, lines(found)))
            print(json.dumps(found.to_plain(), indent=2) if form == "json" else shown)
            return
        differences = found.differences(Inspection.of(other))
    if form == "json":
        print(json.dumps({"differences": differences}, indent=2))
    else:
        print("\n".join(map(printable, differences)) or f"{path} and {other} say the same")
    if differences:
        sys.exit(1)


def _terms(given: dict[str, Any], limits: dict[str, Any], privacy: Privacy) -> Terms:
    """Terms from the options that were given; the others have their defaults."""
    chosen = {key: value for key, value in given.items() if value is not None}
    for option, key in (("--name", "network"), ("--label", "label")):
        if key not in chosen:
            raise TermsError(f"{option} is missing; expected it, or an agreement with --terms FILE")
    if chosen.get("clip") == 0:
        chosen["clip"] = None
    bounds = replace(Limits(), **{key: value for key, value in limits.items() if value is not None})
    return Terms(**chosen, limits=bounds, privacy=privacy)


def _features(given: list[str] | None) -> dict[str, Any]:
    """COLUMN=KIND or COLUMN=KIND:FACTS, or COLUMN alone; a column's name may hold '=' as well."""
    if not given:
        return {"features": None}
    pairs = [
        (column, kind) if sign else (kind, "auto")
        for column, sign, kind in (f.rpartition("=") for f in given)
    ]
    if len(dict(pairs)) < len(pairs):
        raise TermsError(f"--feature names a column twice: {', '.join(given)}; expected each once")
    features, facts = {}, {}
    for column, kind in pairs:
        features[column], told, known = kind.partition(":")
        if told:
            facts[column] = Facts.of(
                features[column], _known(features[column], known), f"--feature {column!r:.80}"
            )
    return {"features": features, **({"facts": facts} if facts else {})}


def _known(kind: str, text: str) -> dict[str, Any]:
    """0..100, 40+-15, or a,b,c."""
    if kind == "discrete":
        return {"categories": _values(text)}
    for sign, names in (("..", ("least", "most")), ("+-", ("mean", "sd"))):
        first, found, second = text.partition(sign)
        if found:
            try:
                numbers = [float(first), float(second)]
            except ValueError:
                break
            return {"range": numbers} if sign == ".." else dict(zip(names, numbers, strict=True))
    raise TermsError(f"--feature says {text!r:.60} of a {kind} column; expected LEAST..MOST, or MEAN+-SD")


def _values(text: str) -> list[Any]:
    """a,b,c as texts, or 0,1 as numbers."""
    parts = [part.strip() for part in text.split(",")]
    for number in (int, float):
        try:
            return [number(part) for part in parts]
        except ValueError:
            continue
    return parts


def _warn(roster: Roster, terms: Terms, network: Path) -> None:
    """What the founder should know before anybody starts."""
    from peerbayes.peers.exposing import warnings

    for warning in warnings(roster, terms):
        print(f"Privacy: {warning}.")
        print(f"  `peerbayes audit {network}` says more; see docs/protection.md")


def _hand_over(network: Path, roster: Roster) -> None:
    print(
        f"Written: {network / 'roster.json'}. Members pass it on to each other once one has it: give it to any one"
    )
    print("that runs, better to several, with `peerbayes node join FOLDER roster.json`.")
    if roster.closed:
        print("Nobody needs to stop for that.")
