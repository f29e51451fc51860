"""The audit of a folder: of a run, a peer or a network."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from peerbayes import network
from peerbayes.audit.observation import Observation, again
from peerbayes.audit.reconstruction import reconstruct
from peerbayes.data.schema import Schema
from peerbayes.errors import ConfigurationError
from peerbayes.learning import planning
from peerbayes.learning.relay import LARGEST_NETWORK, spanning_tree
from peerbayes.learning.shared_settings import LR
from peerbayes.learning.strategies import LearningSettings, NetworkFacts
from peerbayes.model import layout
from peerbayes.model.families import NaiveBayes
from peerbayes.privacy.accounting import Privacy
from peerbayes.privacy.exposure import Exposure
from peerbayes.simulation.partitions import partition as partition_rows
from peerbayes.simulation.result import RUN_FILE, Run

# --- try both attacks: on a leaf of a saved run whose rows are given, or on the rows of a peer's own home


def on_run(folder: Path, X: Any, y: Any, peer: int, seconds: float) -> dict[str, Any]:
    """Run both attacks on a peer of a saved run, by its only neighbour."""
    run = Run.load(folder)
    return _attacked(f"peer {peer}", again(run, X, y, peer=peer), int(run.configuration["rounds"]), seconds)


def on_home(folder: Path, seconds: float) -> dict[str, Any]:
    """Run both attacks on a peer's own rows, as if it had a single neighbour. Nothing leaves this machine.

    The schema is inferred from its own rows: those of others are not known here.
    """
    from peerbayes.peer.service import tables_of
    from peerbayes.peer.state.folder import Home

    peer = Home(folder).load()
    (frame, labels), _ = tables_of(peer)
    kinds = peer.terms.features or "auto"
    schema = Schema.infer(frame, labels, kinds=kinds, clip=peer.terms.clip)
    observation = beside_a_mirror(schema, frame, labels, peer.terms.rounds, peer.terms.lr)
    return _attacked(peer.name, observation, peer.terms.rounds, seconds)


def beside_a_mirror(schema: Schema, X: Any, y: Any, rounds: int, lr: float = LR.default) -> Observation:
    """Observe a peer with these rows whose only neighbour returns its messages: the rounds of calibration alone.

    For rows without a known network: the statistics are those of peers that all hold such rows.
    """
    rows, labels = schema.encode(X), schema.encode_labels(y)
    missing = bool(np.isnan(rows.values).any())
    family = layout.calibrated("naive-bayes", schema, missing, float(len(labels)))
    classes = len(schema.classes)
    plan = planning.plan(LearningSettings(planning.PAPER, rounds, lr), NetworkFacts(1, len(labels)))
    strategy, start = plan.strategy, family.uniform(classes, plan.start_weight)
    observation = Observation(
        0, 1, True, strategy, (0.0, 1.0), family, start, start[None], start[None], rows, labels, schema
    )
    residual, messages, stats = observation.residual, [start], start[None]
    for _ in range(rounds - 1):
        stats = strategy.step(stats, stats, residual)
        messages.append(stats[0])
    return replace(observation, heard=np.array(messages), said=np.array(messages))


def _attacked(name: str, observation: Observation, rounds: int, seconds: float) -> dict[str, Any]:
    """Return the shares of rows that both attacks recover; None where an attack does not support the rows."""
    family, listening, lying = observation.family, None, None
    if isinstance(family, NaiveBayes) and not family.poisson:
        if observation.leaf and not family.missing and (np.asarray(observation.rows.codes) >= 0).all():
            listening = reconstruct(observation, seconds=seconds).recovered
        if family.continuous:
            lying = reconstruct(observation, active=True, rounds=rounds).recovered
    return {
        "peer": name, "rows": len(observation.labels), "rounds": rounds, "listening": listening, "lying": lying,
    }  # fmt: skip


# --- audit a folder: a saved run, a peer's home or a founder's network


@dataclass(frozen=True)
class Audit:
    """Every peer's exposure, the worst first."""

    what: str
    """The audited subject, in words."""
    exposures: tuple[Exposure, ...]
    notes: tuple[str, ...] = ()
    """What the audit could not determine."""

    @property
    def alarming(self) -> int:
        """Number of peers with an alarm."""
        return sum(exposure.alarming for exposure in self.exposures)

    def verdict(self) -> str:
        """Return the verdict in one sentence."""
        peers = len(self.exposures)
        if not peers:
            return "Nobody is in yet: there is nothing to judge."
        if not self.alarming:
            return (
                f"Nothing alarming at {peers} peer{'s' * (peers > 1)}: but "
                + ("noise is a bound, and no anonymity." if all(e.hidden for e in self.exposures) else
                   "neighbours learn class counts, and rows are not anonymous.")
            )  # fmt: skip
        subject = "The peer is" if peers == 1 else f"{self.alarming} of {peers} peers are"
        return f"Alarming: {subject} open to neighbours. Do not start unless these may see the rows."

    def to_plain(self) -> dict[str, Any]:
        """Return the audit as plain values for JSON."""
        return {
            "what": self.what, "peers": len(self.exposures), "alarming": self.alarming, "verdict": self.verdict(),
            "notes": list(self.notes), "exposures": [exposure.to_plain() for exposure in self.exposures],
        }  # fmt: skip


def of_run(folder: Path, labels: np.ndarray | None = None) -> Audit:
    """Audit a saved simulation. Labels [n] of its rows add class counts, where its partition has a name."""
    run = Run.load(folder)
    strategy, rounds = run.configuration["strategy"], int(run.configuration["rounds"])
    peer_count = len(run.sizes)
    degree = np.bincount(run.links.ravel(), minlength=peer_count)
    if (
        planning.declaration_of(strategy).over_tree and peer_count <= LARGEST_NETWORK
    ):  # only links of the tree carry messages
        links = network.adjacency(np.asarray(run.links), peer_count, np.random.default_rng(0))
        degree = np.bincount(spanning_tree(links).sender, minlength=peer_count)
    counts = None if labels is None else _class_counts(run, labels)
    notes = () if counts is not None else ("class counts of the peers are not known here: give --data",)
    promise = run.configuration.get("privacy") or {}
    exposures = [
        Exposure(
            f"peer {peer}", int(degree[peer]), int(run.sizes[peer]), None if counts is None else counts[peer], rounds,
            not planning.silent(strategy), promise.get("epsilon"), promise.get("delta", Privacy.delta),
            int(degree[peer]) if run.configuration.get("secure_sum") else 1,
        )
        for peer in range(peer_count)
    ]  # fmt: skip
    return Audit(
        f"{folder}: a simulation of {peer_count} peers, {strategy}, {rounds} rounds",
        _worst_first(exposures),
        notes,
    )


def of_network(path: Path) -> Audit:
    """Audit a peer's home or a network's folder: links from the roster, rows where they are on this machine."""
    from peerbayes.peer import inspection as exposing
    from peerbayes.peer.inspection import Inspection
    from peerbayes.peer.service import tables_of
    from peerbayes.peer.state.folder import Home

    inspection = Inspection.of(path)
    if inspection.roster is None or inspection.terms is None:
        raise ConfigurationError(
            f"{path} is {inspection.what}, without a roster; expected a peer that has joined, or a network"
        )
    roster, terms = inspection.roster, inspection.terms
    own_name, notes = None, []
    if (home := Home(path)).settings_path.exists():
        own_name = home.settings().name
    else:
        notes.append(
            f"rows are not known here; the agreement asks for {terms.limits.rows} or more at every peer"
        )
    exposures = []
    for member in roster.members:
        if member.name in roster.revoked or (own_name is not None and member.name != own_name):
            continue
        if own_name is not None:
            peer = home.load()
            exposures.append(exposing.exposure(peer, tables_of(peer)[0][1]))
        else:  # the fewest rows that it may bring
            fewest = terms.limits.rows if terms.limits.rows > 1 else None
            exposures.append(exposing.member(member.name, roster, terms, fewest))
    if own_name is not None:
        notes.append(f"rows of others than {own_name} are not known here")
    return Audit(
        f"{path}: {inspection.what}, {len(roster.members)} members", _worst_first(exposures), tuple(notes)
    )


def of(path: Path, labels: np.ndarray | None = None) -> Audit:
    """Audit the run, home or network at a path."""
    if (path / RUN_FILE).is_file():
        return of_run(path, labels)
    if not path.is_dir():
        raise ValueError(f"{path} is no folder; expected a saved run, a peer's home or a network's folder")
    if not any((path / name).exists() for name in ("peer.toml", "authority.crt")):
        raise ValueError(
            f"{path} holds neither {RUN_FILE}, nor peer.toml, nor authority.crt; expected a folder that "
            "`peerbayes simulate --out`, `peerbayes peer request` or `peerbayes network new` wrote"
        )
    return of_network(path)


def _class_counts(run: Run, labels: np.ndarray) -> list[tuple[int, ...]] | None:
    """Return the class counts of every peer; None where the partition needs more than labels."""
    configuration = run.configuration
    codes = run.schema.encode_labels(labels)
    if configuration["partition"] in ("drift-x", "drift-xy") or configuration["rows_per_peer"] == "list":
        return None
    row_blocks = partition_rows(
        configuration["partition"],
        codes,
        None,
        len(run.sizes),
        configuration["rows_per_peer"],
        np.random.default_rng([configuration["seed"], 0]),
    )
    if [len(block) for block in row_blocks] != run.sizes.tolist():
        raise ValueError(
            "these rows do not give peers of the run's sizes; expected the rows that the run was made of"
        )
    classes = len(run.schema.classes)
    return [tuple(np.bincount(codes[block], minlength=classes).tolist()) for block in row_blocks]


def _worst_first(exposures: list[Exposure]) -> tuple[Exposure, ...]:
    return tuple(sorted(exposures, key=Exposure.badness, reverse=True))
