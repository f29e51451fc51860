"""Twenty peers learn to read digits, and a report shows how.

    python examples/simulate_and_report.py [FOLDER]

Writes the run and the report to the folder (a new one by default). The report needs the extra `report`.
"""

import sys
import tempfile
from pathlib import Path

from sklearn.datasets import load_digits

import peerbayes as pb

folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="peerbayes-"))
X, y = load_digits(return_X_y=True, as_frame=True)

run = pb.simulate(X, y, peers=20, rows_per_peer=40, topology="tree+10", strategy="auto", rounds=32)

told = run.summary()
print(f"{told['peers']:.0f} peers, {told['rounds']:.0f} rounds, test error:")
for name, key in (
    ("the peers, together", "test_error"),
    ("each peer alone", "test_local"),
    ("RC on the pooled rows", "test_rc"),
    ("ML on the pooled rows", "test_ml"),
):
    print(f"  {name:<22} {told[key]:.3f}")

worst = run.history.query("round == 32").nlargest(3, "test_error")
print("\nThe three peers that do worst:")
print(worst[["peer", "test_error", "disagreement"]].to_string(index=False))

run.save(folder / "run")  # pb.Run.load reads it again
print(f"\nThe report: {run.report(folder / 'report.html')}")
