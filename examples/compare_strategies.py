"""A study: strategies side by side as peers' data drift apart, with intervals over seeds and paired tests.

python examples/compare_strategies.py
"""

import peerbayes as pb

if __name__ == "__main__":
    study = pb.study(
        dataset="digits", name="24 peers on a tree", strategy=["local", "crc", "exact", "auto"],
        partition=["iid", "drift-x", "drift-y"], seed=range(3), peers=24, rows_per_peer=25, topology="tree",
        rounds=32, evaluate_every=0, compare="strategy", progress=False,
    )  # fmt: skip
    print(study.markdown("test_gap_rc"))  # to calibration on the pooled rows: 0 is the aim
    print(study.markdown("test_error"))
