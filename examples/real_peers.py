"""Three real peers on this machine, from Python: a process and a file each, mutual TLS between them.

    python examples/real_peers.py [FOLDER]

Needs the extra `peer`. The folder (a new one by default) then holds what each peer has: key, model, audit log.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

import peerbayes as pb
from peerbayes.peer.agreement.terms import Limits, Terms
from peerbayes.peer.loopback import Loopback

if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="peerbayes-"))
    rows = load_breast_cancer(as_frame=True).frame.rename(columns={"target": "diagnosis"})
    rows["diagnosis"] = rows["diagnosis"].map({0: "malignant", 1: "benign"})
    order = np.random.default_rng(0).permutation(len(rows))
    *tables, test = (rows.iloc[part] for part in np.split(order, [150, 300, 450]))

    terms = Terms("study", "diagnosis", rounds=32, limits=Limits(rows=100))
    network = Loopback.create(folder / "network", terms, tables, links=[(0, 1), (1, 2), (0, 2)])
    try:
        for name in network.homes:
            network.start(name)
        network.wait()  # until all have done their rounds
    finally:
        network.stop()

    X, y = test.drop(columns="diagnosis"), test["diagnosis"]
    for name, home in network.homes.items():
        model = pb.load(home.model_path)
        sent = [json.loads(line) for line in (home.folder / "audit.jsonl").read_text().splitlines()]
        print(
            f"{name}: test error {1 - model.score(X, y):.3f}; {len(sent)} messages, "
            f"{sum(entry['bytes'] for entry in sent):,} bytes left it, no row"
        )

    beside = pb.simulate(
        rows.drop(columns="diagnosis"), rows["diagnosis"], peers=3, topology="complete", rounds=32, evaluate_every=0,
        partition=np.split(order[:450], [150, 300]), test=(X, y),
    )  # fmt: skip
    print(f"the simulator, with the same rows: {beside.summary()['test_error']:.3f}")
