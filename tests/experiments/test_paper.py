"""Risk-based calibration reaches the errors of an independent prototype on the paper's datasets."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import paper_rc


@pytest.mark.parametrize("name", paper_rc.DATASETS)
def test_calibration_reaches_the_prototypes_error(name, paper_data):
    _, calibrated = paper_rc.errors(paper_data, name)
    assert calibrated == pytest.approx(paper_rc.DATASETS[name][2], abs=paper_rc.TOLERANCE)
