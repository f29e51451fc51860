"""Warnings to an operator before something becomes a problem; shown by `check`, `status` and the log of a run."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from peerbayes.peers import identity
from peerbayes.peers.home import Home, Peer

ENDS_SOON = timedelta(days=60)
OTHERS = 0o077  # permission bits that a private file does not have


def warnings_of(home: Home, peer: Peer, now: datetime | None = None) -> list[str]:
    """Return the problems of a peer's folder that do not prevent a run."""
    return [*_readable(home), *_ending(peer, now or datetime.now(UTC))]


def days_left(certificate: bytes, now: datetime | None = None) -> float:
    """Return the days until a certificate expires; negative: it has expired."""
    return (identity.expiry(certificate) - (now or datetime.now(UTC))) / timedelta(days=1)


def unreached(address: str, reached: Iterable[str]) -> str:
    """Return the warning that nobody has ever reached this peer, though it reaches others."""
    return (
        f"nobody has reached this peer at {address} since it started, though it reaches {', '.join(reached)}: is the "
        "port open inwards in this machine's firewall, and forwarded by its router? `peerbayes node check` asks a "
        "neighbour"
    )


def _readable(home: Home) -> Iterable[str]:
    for path in (home.key_path, home.state_path):
        if path.exists() and (mode := path.stat().st_mode & 0o777) & OTHERS:
            yield f"{path} can be read by others (mode {mode:04o}); make it private with `chmod 600 {path}`"


def _ending(peer: Peer, now: datetime) -> Iterable[str]:
    for subject, certificate, advice in (
        (
            f"the certificate of {peer.name}",
            peer.certificate,
            "ask the founder for a new one (`peerbayes network invite --again`) and join with it",
        ),
        ("the certificate of the network's authority", peer.authority, "create another network before that"),
    ):
        days = days_left(certificate, now)
        if days < ENDS_SOON / timedelta(days=1):
            end = identity.expiry(certificate)
            yield f"{subject} ends in {max(0, int(days))} days, on {end:%Y-%m-%d}; {advice}"
