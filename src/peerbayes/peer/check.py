"""`peerbayes peer check`: everything that can be checked before a run, with advice where a check fails."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from peerbayes.data.sources.sql import mixes_rows
from peerbayes.errors import PeerbayesError
from peerbayes.peer.agreement.pooling import described
from peerbayes.peer.agreement.private_agreement import refuse_rows
from peerbayes.peer.inspection import exposure
from peerbayes.peer.learning.masks import groups, refuse_thin
from peerbayes.peer.protocol.reachability import Check, neighbours
from peerbayes.peer.protocol.transport import listening_problem
from peerbayes.peer.service import tables_of
from peerbayes.peer.state.continuity import refuse_broken
from peerbayes.peer.state.disk import running
from peerbayes.peer.state.folder import Home, Peer
from peerbayes.peer.state.ledger import refuse_overspent, spent
from peerbayes.peer.status import warnings_of
from peerbayes.privacy.exposure import WORDS


def checks(home: Home) -> Iterator[Check]:
    """Yield all findings, one after the other; those that depend on a failed one are left out."""
    try:
        peer = home.load()
    except PeerbayesError as error:
        yield Check("identity", "failed", str(error))
        return
    yield Check("identity", "ok", f"{peer.name} in {peer.terms.network}, roster {peer.roster.version}")
    if not peer.roster.closed:
        yield Check("roster", "warning", f"still open with {len(peer.roster.members)} members: a run waits until the "
                    "founder closes it")  # fmt: skip
    if peer.terms.privacy.secure_sum and peer.roster.closed:
        yield _group(peer)
    yield from _record(home)
    yield from _data(home, peer)
    for warning in warnings_of(home, peer):
        yield Check("folder", "warning", warning)
    yield _port(home, peer)
    yield from asyncio.run(neighbours(peer, runs=running(home)))


def _record(home: Home) -> Iterator[Check]:
    """Check that the state and the audit log belong together; not while the peer runs, since both grow."""
    if running(home) or not (home.state_path.exists() or home.audit_path.exists()):
        return
    try:
        refuse_broken(home.state_path, home.audit_path)
    except PeerbayesError as error:
        yield Check("state and audit log", "failed", str(error))
    else:
        yield Check("state and audit log", "ok", "belong together")


def _data(home: Home, peer: Peer) -> Iterator[Check]:
    if peer.terms.privacy.epsilon is not None:
        yield from _private_data(home, peer)
        return
    try:
        (frame, labels), away = tables_of(peer)
        summary = described(peer.name, frame, labels, peer.terms)
    except (PeerbayesError, ValueError, TypeError) as error:
        yield Check("data", "failed", str(error))
        return
    kinds = ", ".join(
        f"{name} {next(iter(column.kinds))}" for name, column in list(summary.columns.items())[:8]
    )
    yield Check(
        "data", "ok",
        f"{len(frame):,} rows, {len(summary.columns)} features ({kinds}{', …' if len(summary.columns) > 8 else ''}), "
        f"{len(summary.classes)} classes" + (f"; {len(away[1]):,} more rows to test on" if away else ""),
    )  # fmt: skip
    for alarm in exposure(peer, labels).alarms():
        yield Check("privacy", "warning", f"{alarm}. {WORDS}")


def _private_data(home: Home, peer: Peer) -> Iterator[Check]:
    """Check that the rows match the agreement, and report what privacy they are promised."""
    promise = peer.terms.privacy.promise
    assert promise is not None
    try:
        (frame, labels), away = tables_of(peer)
        refuse_rows(frame, labels, peer.terms)
        refuse_overspent(home, peer)
        if peer.roster.closed:
            refuse_thin(peer.roster, promise)
    except (PeerbayesError, ValueError, TypeError) as error:
        yield Check("data", "failed", str(error))
        return
    yield Check(
        "data", "ok",
        f"{len(frame):,} rows as the agreement describes them: {len(peer.terms.features)} features, "
        f"{len(peer.terms.classes)} classes" + (f"; {len(away[1]):,} more rows to test on" if away else ""),
    )  # fmt: skip
    if peer.settings.query is not None and (word := mixes_rows(peer.settings.query)) is not None:
        yield Check(
            "query", "warning",
            f"it says {word}: where one record changes several rows of the result, the promise is about rows and not "
            "about records. Make each row from one record",
        )  # fmt: skip
    budget = spent(home, peer)
    assert budget is not None
    before = budget["with_earlier_runs"]
    yield Check(
        "privacy", "ok",
        f"whatever leaves has noise: nobody learns more about one row than epsilon {promise.epsilon:g} (delta "
        f"{promise.delta:g}) allows; {budget['spent']:.4g} is spent"
        + (f", {before:.4g} with other runs on these rows" if before is not None else ""),
    )  # fmt: skip
    if budget["in_all"] > promise.epsilon * (1 + 1e-9):
        yield Check(
            "privacy", "warning",
            f"with other runs on these rows epsilon will be {budget['in_all']:.4g} in total, more than this network "
            f"promises; epsilon under [require] in {home.settings_path} sets a limit",
        )  # fmt: skip


def _group(peer: Peer) -> Check:
    group = groups(peer.roster).get(peer.name)
    if group is None:
        others = ", ".join(peer.roster.present(peer.name)) or "nobody"
        return Check(
            "secure sums", "failed",
            f"too few neighbours are left to sum: linked to {others}, each of whom needs three as well. Found a new "
            "network",
        )  # fmt: skip
    return Check("secure sums", "ok", f"a group of {len(group)}: {', '.join(group)}")


def _port(home: Home, peer: Peer) -> Check:
    listen = peer.settings.listen
    if running(home):
        return Check("port", "ok", f"{listen} is in use by this peer, which runs")
    problem = listening_problem(listen)
    return Check("port", "ok", f"{listen} is free") if problem is None else Check("port", "failed", problem)
