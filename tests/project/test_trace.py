"""How many files of the package one has to read to follow a fit or a simulation."""

import numpy as np
import pytest
import trace_files

from peerbayes.model.core import statistics

# The most files that a call passes through: fewer is better, more needs a reason.
MOST = {
    "fit": 14,
    "simulation": 53,
}  # one more since kinds of columns are values of their own; four more since the strategy is chosen, faults are kinds,
# messages may be rounded and models have a scaling; three more since metrics and baselines are settings with figures;
# two more since a run names its data by their digest, and what was asked; one more since runs report their rounds;
# one more since the history's records are a file of their own; one more in each since data are glanced at, and one
# since peers may be owners that a column names; one more since a run keeps histograms of its rows; one more since
# training rows are a file of their own, for tables and for blocks of files


@pytest.mark.parametrize("name", trace_files.calls())
def test_a_call_passes_through_few_files(name):
    files = trace_files.files_of(trace_files.calls()[name])
    assert len(files) <= MOST[name], files


def test_files_are_those_whose_functions_are_called():
    assert trace_files.files_of(lambda: statistics(np.ones((4, 2)), np.ones((4, 3)))) == ["model/core.py"]
    assert trace_files.files_of(lambda: None) == []
