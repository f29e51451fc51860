"""Error, messages and bytes of messages in float64, float32 and int8, without losses and with them.

    PEERBAYES_DATA=folder python benchmarks/bytes.py [--seeds 121] [--cells secondary,letter] [--loss 0,0.2]

Each line is a cell of the paper, a form of messages and a share of lost ones: the mean gap of peers' test error to RC
on the pooled rows, messages that a peer sends to each neighbour, and kilobytes that a peer sends to all, also as a
share of those of `exact` with float64 and no losses.
"""

import argparse
import os
import sys
import warnings

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np

from peerbayes import simulate
from peerbayes.experiments.cells import ALL, Cell, compute, prepared
from peerbayes.learning.few_bytes import exchange_count

CELLS = {
    "secondary": {"dataset": "secondary", "partition": "drift-xy"},
    "letter": {"dataset": "letter", "partition": "drift-xy"},
    "letter-n320": {"dataset": "letter", "peers": 320},
    "adult": {"dataset": "adult", "partition": "drift-xy", "topology": "tree+20"},
    "fashion": {"dataset": "fashion", "partition": "drift-xy"},
}
FORMS = {
    "exact float64": {"strategy": "exact"},
    "relay float64": {"strategy": "relay"},
    "exact float32": {"strategy": "exact", "messages": "float32"},
    "exact int8 x 4": {"strategy": "exact", "messages": "int8"},
    "relay int8 x 4": {"strategy": "relay", "messages": "int8"},
    "exact int8 x 8": {"strategy": "exact", "messages": "int8", "exchanges": 8},
    "auto float64": {"strategy": "auto"},
    "auto int8 x 4": {"strategy": "auto", "messages": "int8"},
    "auto int8 x 8": {"strategy": "auto", "messages": "int8", "exchanges": 8},
    "relay int8 x 8": {"strategy": "relay", "messages": "int8", "exchanges": 8},
}


def figures(cell: Cell, form: dict, loss: float) -> tuple[float, float]:
    """Return the mean test error of peers, and the bytes that each has sent."""
    data = prepared(cell.dataset)
    (X, y), test = data.split(cell.rows, cell.seed)
    summary = simulate(
        X, y, peers=cell.peers, rows_per_peer=cell.rows_per_peer, topology=cell.topology, partition=cell.partition,
        seed=cell.seed, schema=data.schema, test=test, evaluate_every=0, evaluate_rows=(1, ALL), references=False,
        message_loss=loss, **form,
    ).summary()  # fmt: skip
    return summary["test_error"], summary["bytes_per_peer"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="121", help="seeds with commas between them")
    parser.add_argument("--cells", default="secondary,letter", help=f"of {', '.join(CELLS)}")
    parser.add_argument(
        "--forms", default="", help="words that the names of forms have, with commas between them"
    )
    parser.add_argument("--loss", default="0,0.2", help="shares of lost messages with commas between them")
    asked = parser.parse_args()
    if "PEERBAYES_DATA" not in os.environ:
        print("PEERBAYES_DATA must name the folder of the datasets", file=sys.stderr)
        return 2
    warnings.simplefilter("ignore")
    seeds = [int(seed) for seed in asked.seeds.split(",")]
    print(
        f"seeds {asked.seeds}\n{'cell':<12} {'loss':>5} {'form':<15} {'gap':>7} {'messages':>9} {'kB':>9} {'share':>6}"
    )
    for name in asked.cells.split(","):
        cells = [Cell(seed=seed, strategy="exact", **CELLS[name]) for seed in seeds]
        pooled = [compute(cell.reference.specification())["test_rc"] for cell in cells]
        plain = None
        for loss in map(float, asked.loss.split(",")):
            for form, settings in FORMS.items():
                if not all(word in form for word in asked.forms.split(",")):
                    continue
                runs = [figures(cell, settings, loss) for cell in cells]
                gap = np.mean([error - rc for (error, _), rc in zip(runs, pooled, strict=True)])
                sent = np.mean([sent for _, sent in runs])
                plain = sent if plain is None else plain
                messages = 64 * exchange_count(settings.get("messages", "float64"), settings.get("exchanges"))
                shares = f"{gap:>7.4f} {messages:>9} {sent / 1e3:>9.1f} {sent / plain:>6.0%}"
                print(f"{name:<12} {loss:>5.0%} {form:<15} {shares}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
