"""Try both attacks: on a leaf of a saved run whose rows are given, or on the rows of a peer's own home."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from peerbayes import layouts
from peerbayes.audit.observing import Observation, again
from peerbayes.audit.reconstruction import reconstruct
from peerbayes.families import NaiveBayes
from peerbayes.runs import Run
from peerbayes.schema import Schema
from peerbayes.strategies import CRC


def on_run(folder: Path, X: Any, y: Any, peer: int, seconds: float) -> dict[str, Any]:
    """Run both attacks on a peer of a saved run, by its only neighbour."""
    run = Run.load(folder)
    return _attacked(f"peer {peer}", again(run, X, y, peer=peer), int(run.configuration["rounds"]), seconds)


def on_home(folder: Path, seconds: float) -> dict[str, Any]:
    """Run both attacks on a peer's own rows, as if it had a single neighbour. Nothing leaves this machine.

    The schema is inferred from its own rows: those of others are not known here.
    """
    from peerbayes.peers.home import Home
    from peerbayes.peers.service import tables_of

    peer = Home(folder).load()
    (frame, labels), _ = tables_of(peer)
    kinds = peer.terms.features or "auto"
    schema = Schema.infer(frame, labels, kinds=kinds, clip=peer.terms.clip)
    observation = beside_a_mirror(schema, frame, labels, peer.terms.rounds, peer.terms.lr)
    return _attacked(peer.name, observation, peer.terms.rounds, seconds)


def beside_a_mirror(schema: Schema, X: Any, y: Any, rounds: int, lr: float = 0.05) -> Observation:
    """Observe a peer with these rows whose only neighbour returns its messages: the rounds of calibration alone.

    For rows without a known network: the statistics are those of peers that all hold such rows.
    """
    rows, labels = schema.encode(X), schema.encode_labels(y)
    missing = bool(np.isnan(rows.values).any())
    family = layouts.calibrated("naive-bayes", schema, missing, float(len(labels)))
    classes = len(schema.classes)
    start = family.uniform(classes, len(labels) / lr)
    observation = Observation(
        0, 1, True, CRC(), (0.0, 1.0), family, start, start[None], start[None], rows, labels, schema
    )
    residual, messages, stats = observation.residual, [start], start[None]
    for _ in range(rounds - 1):
        stats = CRC().step(stats, stats, residual)
        messages.append(stats[0])
    return replace(observation, heard=np.array(messages), said=np.array(messages))


def _attacked(name: str, observation: Observation, rounds: int, seconds: float) -> dict[str, Any]:
    results: dict[str, Any] = {"peer": name, "rows": len(observation.labels), "rounds": rounds}
    family = observation.family
    complete = (
        isinstance(family, NaiveBayes)
        and not family.missing
        and (np.asarray(observation.rows.codes) >= 0).all()
    )
    results["listening"] = (
        reconstruct(observation, seconds=seconds).recovered if complete and observation.leaf else None
    )
    attackable = isinstance(family, NaiveBayes) and bool(family.continuous)
    results["lying"] = reconstruct(observation, active=True, rounds=rounds).recovered if attackable else None
    return results
