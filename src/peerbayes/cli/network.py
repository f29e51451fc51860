"""`peerbayes network`: a network's authority, agreement and invitations."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from peerbayes.cli import Format, Overwrite, argument, option, progress_bar, split, with_options
from peerbayes.data.declarations import declarations
from peerbayes.data.files import printable, refuse_existing, write
from peerbayes.data.kinds import KINDS
from peerbayes.errors import TermsError, parts_needed
from peerbayes.peer.agreement.column_facts import Facts
from peerbayes.peer.agreement.terms import SECTIONS, Terms, packages_of
from peerbayes.peer.identity.roster import Roster
from peerbayes.peer.inspection import Inspection

# --- the output of `peerbayes network inspect`, as lines of text


def report_lines(inspection: Inspection) -> Iterator[str]:
    """Yield a title, the terms, the members, and when certificates expire."""
    yield f"{inspection.path}: {inspection.what}"
    if inspection.authority is not None:
        yield f"authority  {inspection.authority}"
    if inspection.terms is not None:
        yield from ("", *_terms_lines(inspection.terms))
    if inspection.roster is not None:
        yield from ("", *_roster_lines(inspection.roster))
    if inspection.expiries:
        now, width = datetime.now(UTC), max(map(len, inspection.expiries))
        yield from ("", "certificates")
        for name, end in inspection.expiries.items():
            yield f"  {name:{width}}  {'EXPIRED on' if end < now else 'valid until'} {end:%Y-%m-%d}"
    if inspection.notes:
        yield from ("", *(f"note: {note}" for note in inspection.notes))


def _terms_lines(terms: Terms) -> Iterator[str]:
    limits, promise = terms.limits, terms.privacy.promise
    clip = "none" if terms.clip is None else f"{terms.clip:g}"
    columns = ", ".join(f"{name} ({kind})" for name, kind in terms.features.items()) or "all but the label"
    yield f"terms      {terms.digest}"
    yield f"  predict    {terms.label}"
    yield f"  features   {columns}"
    yield (
        f"  learn      {terms.family} by {terms.strategy} from {terms.start}: {terms.rounds} rounds, lr {terms.lr:g}, "
        f"{terms.local_steps} local step{'s' * (terms.local_steps > 1)}, clip {clip}"
    )
    if terms.message_rounds > terms.rounds or terms.messages != "float64":
        yield f"  messages   {terms.messages}, {terms.message_rounds // terms.rounds} exchanges a round"
    if terms.penalty != "none":
        yield f"  structure  links with a penalty, {terms.penalty}"
    if terms.select != "last":
        yield f"  end        the round with the lowest log loss of {terms.select} rows; patience {terms.patience}"
    if terms.packages:
        yield f"  packages   {', '.join(terms.packages)}: code that every member installs"
    yield (
        f"  limits     a round waits {limits.deadline:g} s, for {limits.quorum:.0%} of the neighbours; "
        f"messages up to {limits.message_bytes:,} bytes; {limits.rows} or more rows per peer"
    )
    if terms.figures != "none":
        consequence = (
            "a site that differs is told" if terms.figures == "warn" else "nobody begins if a site differs"
        )
        yield f"  figures    of all sites' tables before the first round: {consequence}"
    if terms.evaluation != "none":
        yield "  evaluation the errors of every site on its held-out rows (hold_out in peer.toml), after the last round"
    items = []
    if promise is not None:
        items.append(f"epsilon {promise.epsilon:g} with delta {promise.delta:g}")
        items.append(f"{promise.min_rows} or more rows per peer")
        if promise.edge_noise:
            items.append(f"edge noise {promise.edge_noise:g} against {promise.colluders} colluding")
    if terms.privacy.secure_sum:
        items.append("secure sums")
    if items:
        yield f"  privacy    {'; '.join(items)}"


def _roster_lines(roster: Roster) -> Iterator[str]:
    state, members = "closed" if roster.closed else "open", [member.name for member in roster.members]
    yield f"roster     version {roster.version} of {roster.network}, {state}, {len(members)} members"
    width = max(map(len, members), default=0)
    for member in roster.members:
        linked = ", ".join(roster.neighbours(member.name)) or "nobody"
        revoked = "  REVOKED" if member.name in roster.revoked else ""
        yield f"  {member.name:{width}}  {member.address}  linked to {linked}{revoked}"
    if roster.deputies:
        yield f"  deputies, which may renew certificates: {', '.join(each.name for each in roster.deputies)}"
    if removed := [name for name in roster.revoked if name not in members]:
        yield f"  revoked before the roster was closed: {', '.join(removed)}"


# --- `peerbayes network`: create a private network, add and remove peers, inspect it
# Exit codes: 0 success, 1 failure or difference, 2 invalid request.

app = typer.Typer(
    help="Create and manage a private network.",
    no_args_is_help=True,
    add_completion=False,
)

Folder = Annotated[Path, option("The network's folder, as created by `new`.", "--network")]


# The settings of an agreement by the names of their options, each with its section.
OPTIONS = {
    setting.option or name: (section, name, setting)
    for section, cls in {"": Terms, **SECTIONS}.items()
    for name, setting in declarations(cls).items()
    if setting.option != ""
}


@app.command()
@parts_needed()
@with_options({name: setting for name, (_, _, setting) in OPTIONS.items()})
def new(
    folder: Annotated[
        Path, argument("The folder to create, for the authority's key and the network's files.")
    ],
    terms: Annotated[Path | None, option("An agreement file to use instead of the options.")] = None,
    feature: Annotated[
        list[str] | None,
        option(
            "COLUMN=KIND: auto, continuous or discrete; may be repeated. Default: all columns. With --epsilon, add "
            "public facts: AGE=continuous:0..100 (range), AGE=continuous:40+-15 (mean and sd), SEX=discrete:f,m."
        ),
    ] = None,
    classes: Annotated[str | None, option("All values of the label: a,b. Required with --epsilon.")] = None,
    peers: Annotated[int | None, option("Close the roster when this many members have joined.")] = None,
    **options: Any,
) -> None:
    """Create a network: its authority, its agreement and an empty roster."""
    from peerbayes.data.files import text_of
    from peerbayes.peer.identity.founder import Founder
    from peerbayes.peer.identity.keys import fingerprint

    chosen: dict[str, Any] = {"": _features(feature), **{section: {} for section in SECTIONS}}
    if classes is not None:
        chosen[""]["classes"] = _values(classes)
    for option_name, value in options.items():
        section, name, _ = OPTIONS[option_name]
        if value is not None:
            chosen[section][name] = value
    if terms is None:
        agreed = _terms(chosen.pop(""), chosen)
        agreement = agreed.to_toml()
    elif not any(chosen.values()):
        agreed = Terms.read(terms)  # errors then name the founder's file, not the copy
        agreement = text_of(terms)
    else:
        raise ValueError("both --terms and options of the agreement were given; expected only one of them")
    agreed.load_packages()  # what they do not allow is refused here, and not first by those who are invited
    founder = Founder.create(folder, agreement, peers)
    network, authority = founder.terms().network, fingerprint(founder.authority())
    print(
        f"Created the network {network} in {folder}:\n"
        "  authority.key   the authority's private key: it decides who is a member; keep it secret\n"
        f"  authority.crt   the authority's certificate, {authority}\n"
        "  agreement.toml  what is learned, and how; change it before the first invitation, not later\n"
        "  roster.json     the members: none yet\n"
        "Next: each peer runs `peerbayes peer request FOLDER --name NAME --address HOST:PORT --data FILE` and sends\n"
        f"its peer.csr; then `peerbayes network invite NAME --request peer.csr --address HOST:PORT --network {folder}`"
    )


@app.command()
@parts_needed()
def invite(
    name: Annotated[str, argument("The peer's name, as in its request.")],
    request: Annotated[Path, option("The peer.csr that the peer sent.")],
    address: Annotated[
        str,
        option(
            "host:port at which its neighbours reach it, relay://host:port of the relay where it waits, or outbound, "
            "if nobody can reach it."
        ),
    ],
    links: Annotated[
        str | None,
        option(
            "Its neighbours: a,b. Default: all members, or four all over the network that have few links."
        ),
    ] = None,
    network: Folder = Path(),
    out: Annotated[Path | None, option("The invitation file; default NAME.invitation.")] = None,
    again: Annotated[bool, option("Renew a member's certificate and address.", "--again")] = False,
    overwrite: Overwrite = False,
) -> None:
    """Add a peer: sign its request, add it to the roster, write its invitation."""
    from peerbayes.peer.identity.founder import Founder
    from peerbayes.peer.identity.keys import fingerprint

    founder, target = Founder(network), out or Path(f"{name}.invitation")
    founder.refuse_taken(name, address, again)
    refuse_existing(
        target, overwrite or (again and out is None)
    )  # NAME.invitation is renewed with the certificate
    neighbours_named = None if links is None else split(links)
    invitation = founder.invite(name, request.read_bytes(), address, neighbours_named, again)
    write(target, invitation.pack())
    roster, expected_members = invitation.verified_roster(), founder.peers()
    authority = fingerprint(founder.authority())
    neighbours, count = ", ".join(roster.neighbours(name)) or "nobody yet", len(roster.members)
    print(f"{name} at {address} is a member of {roster.network}, linked to {neighbours}; ", end="")
    print(
        f"roster version {roster.version}\n"
        f"Wrote {target}. Send it to {name}, who runs `peerbayes peer join FOLDER {target.name}`\n"
        f"and compares the authority's fingerprint with yours over another channel: {authority}"
    )
    if roster.closed:
        print(
            f"The roster is closed with {count} members, which can now run. Members that joined earlier\n"
            f"get it from those that join now, or with `peerbayes peer join FOLDER {founder.roster_path}`."
        )
        _print_warnings(roster, founder.terms(), network)
    elif expected_members:
        print(f"{count} of {expected_members} members have joined.")
    else:
        print("Next: invite the others, then `close`.")


@app.command("invite-all")
@parts_needed()
def invite_all(
    file: Annotated[
        Path, argument("A CSV file with the columns name, request, address and, if wanted, links.")
    ],
    network: Folder = Path(),
    out: Annotated[Path, option("The folder for the invitations; created where it is missing.")] = Path(
        "invitations"
    ),
) -> None:
    """Add many peers at once, all or none: sign their requests, write their invitations.

    Where it was interrupted, run it again: who was added before with the same key gets the same invitation.
    """
    from peerbayes.peer.identity.founder import Founder, applicants_in

    founder = Founder(network)
    before, applicants = len(founder.roster().members), applicants_in(file)
    with progress_bar() as bar:
        invitations = founder.invite_all(
            applicants, lambda new: bar.track(new, description="signing requests")
        )
        out.mkdir(parents=True, exist_ok=True)
        for invitation in bar.track(invitations, description="writing invitations"):
            write(out / f"{invitation.name}.invitation", invitation.pack())
    roster, beside = founder.roster(), ""
    if not all(invitation.roster for invitation in invitations):
        write(out / "roster.json", founder.roster_path.read_bytes())
        beside = " with roster.json, which is too large to be in each of them,"
    print(
        f"{len(invitations):,} peers are members of {roster.network}, which has {len(roster.members):,}, "
        f"{len(roster.members) - before:,} of them new; roster version {roster.version}, "
        f"{'closed' if roster.closed else 'still open'}\n"
        f"Sums over all members take {roster.tree.hops} hops at most.\n"
        f"Wrote {out}. Send each peer its invitation{beside} and compare the authority's fingerprint "
        "over another channel."
    )


@app.command()
@parts_needed()
def close(network: Folder = Path()) -> None:
    """Close the roster to new members, so that a run can start."""
    from peerbayes.peer.identity.founder import Founder

    founder = Founder(network)
    roster, terms = founder.close(), founder.terms()
    print(f"{roster.network} is closed with {len(roster.members)} members; roster version {roster.version}")
    _print_warnings(roster, terms, network)
    _print_next_steps(network, roster)


@app.command()
@parts_needed()
def revoke(
    name: Annotated[str, argument("The member to exclude.")],
    network: Folder = Path(),
) -> None:
    """Exclude a member permanently."""
    from peerbayes.peer.identity.founder import Founder

    founder = Founder(network)
    before = set(founder.roster().links)
    roster = founder.revoke(name)
    print(f"{name} is revoked in {roster.network}; roster version {roster.version}")
    if new := sorted(set(roster.links) - before):
        links = ", ".join(" and ".join(link) for link in new)
        print(
            f"Without it the others would not be connected, so these are linked from the next run on: {links}"
        )
    _print_next_steps(network, roster)


@app.command()
@parts_needed()
def deputy(
    name: Annotated[str, argument("The member that may renew certificates.")],
    network: Folder = Path(),
    dismiss: Annotated[bool, option("Take the right away again.", "--dismiss")] = False,
) -> None:
    """Let a member renew certificates of members with the key it has; names and keys stay as the roster has them."""
    from peerbayes.peer.identity.founder import Founder

    founder = Founder(network)
    if dismiss:
        roster = founder.dismiss_deputy(name)
        print(
            f"{name} renews no certificates any more; those that it renewed are not accepted. Members with such a one "
            "need another: `peerbayes network renew`, or another deputy"
        )
    else:
        roster = founder.name_deputy(name)
        print(
            f'{name} may renew certificates, once its owner writes renews = "." into its peer.toml. It can renew the '
            "key that\nthe roster has for a name, and nothing else; `--dismiss` or `revoke` ends it."
        )
    print(f"Roster version {roster.version} names {len(roster.deputies)} deputies.")
    _print_next_steps(network, roster)


@app.command()
@parts_needed()
def renew(
    name: Annotated[str | None, argument("The member whose certificate is renewed.")] = None,
    every: Annotated[bool, option("Renew those of all members.", "--all")] = False,
    network: Folder = Path(),
    out: Annotated[Path, option("The folder for the certificates; created where it is missing.")] = Path(
        "renewed"
    ),
) -> None:
    """Write new certificates for the keys that members have; `peerbayes peer join` takes them."""
    from peerbayes.peer.identity.founder import Founder
    from peerbayes.peer.identity.keys import expiry

    if (name is None) != every:
        raise ValueError("renew needs the name of one member, or --all; expected one of the two")
    founder = Founder(network)
    before = founder.roster().version
    renewed = founder.renew(None if name is None else [name])
    out.mkdir(parents=True, exist_ok=True)
    for member, certificate in renewed.items():
        write(out / f"{member}.crt", certificate)
    last = min(map(expiry, renewed.values()))
    print(
        f"Renewed {len(renewed)} certificates, until {last:%Y-%m-%d} or later. Wrote {out}: send each member its own, "
        "which takes it\nwith `peerbayes peer join FOLDER NAME.crt`. Certificates are not secret, and no key changes."
    )
    if founder.roster().version > before:
        print(f"The roster has the members' keys now: send {founder.roster_path} first.")


@app.command()
@parts_needed()
def inspect(
    path: Annotated[Path, argument("A folder, an invitation, a roster or an agreement.")] = Path(),
    other: Annotated[Path | None, argument("Another one to compare it with.")] = None,
    form: Format = "table",
) -> None:
    """Show the members and the agreement, or how two of these differ (exit code 1 if they do)."""
    from peerbayes.peer.inspection import Inspection

    inspection = Inspection.of(path)
    if other is None:
        text = "\n".join(map(printable, report_lines(inspection)))
        print(json.dumps(inspection.to_plain(), indent=2) if form == "json" else text)
        return
    differences = inspection.differences(Inspection.of(other))
    if form == "json":
        print(json.dumps({"differences": differences}, indent=2))
    else:
        print("\n".join(map(printable, differences)) or f"{path} and {other} are the same")
    if differences:
        sys.exit(1)


def _terms(chosen: dict[str, Any], sections: dict[str, dict[str, Any]]) -> Terms:
    """Return terms with these settings, of their own and of their sections, and defaults for the others."""
    for written, name in (("--name", "network"), ("--label", "label")):
        if name not in chosen:
            raise TermsError(f"{written} is missing; expected it, or an agreement file with --terms FILE")
    if chosen.get("clip") in (0, False):
        chosen["clip"] = None
    family, strategy = (chosen.get(name, getattr(Terms, name)) for name in ("family", "strategy"))
    if packages := packages_of(family, strategy):
        chosen["packages"] = packages
    return Terms(**chosen, **{name: SECTIONS[name](**values) for name, values in sections.items()})


def _features(options: list[str] | None) -> dict[str, Any]:
    """Parse COLUMN=KIND, COLUMN=KIND:FACTS or COLUMN; a column's name may contain '=' as well."""
    if not options:
        return {}
    pairs = [
        (column, kind) if equals else (kind, "auto")
        for column, equals, kind in (option.rpartition("=") for option in options)
    ]
    if len(dict(pairs)) < len(pairs):
        raise TermsError(f"--feature names a column twice: {', '.join(options)}; expected each column once")
    features, facts = {}, {}
    for column, kind in pairs:
        features[column], separator, text = kind.partition(":")
        if separator:
            facts[column] = Facts.of(
                features[column], _column_facts(features[column], text), f"--feature {column!r:.80}"
            )
    return {"features": features, **({"facts": facts} if facts else {})}


def _column_facts(kind: str, text: str) -> dict[str, Any]:
    """Parse 0..100, 40+-15, or a,b,c."""
    if kind in KINDS and "categories" in KINDS[kind].public_facts:
        return {"categories": _values(text)}
    for mark, names in (("..", ("least", "most")), ("+-", ("mean", "sd"))):
        first, separator, second = text.partition(mark)
        if separator:
            try:
                numbers = [float(first), float(second)]
            except ValueError:
                break
            return {"range": numbers} if mark == ".." else dict(zip(names, numbers, strict=True))
    raise TermsError(f"--feature gives {text!r:.60} for a {kind} column; expected LEAST..MOST, or MEAN+-SD")


def _values(text: str) -> list[Any]:
    """Parse a,b,c as texts, or 0,1 as numbers."""
    values = [value.strip() for value in text.split(",")]
    for number in (int, float):
        try:
            return [number(value) for value in values]
        except ValueError:
            continue
    return values


def _print_warnings(roster: Roster, terms: Terms, network: Path) -> None:
    """Print what the founder should know before a run starts."""
    from peerbayes.peer.inspection import warnings

    for warning in warnings(roster, terms):
        print(f"Privacy: {warning}.")
        print(f"  For details run `peerbayes audit {network}`; see docs/protection.md")


def _print_next_steps(network: Path, roster: Roster) -> None:
    print(
        f"Wrote {network / 'roster.json'}. Members pass it on to each other: give it to any running member,\n"
        "preferably to several, with `peerbayes peer join FOLDER roster.json`."
    )
    if roster.closed:
        print("No member needs to stop for this.")
