"""One pass over the rows of a table: statistics, residual, log joint, posterior.

If the rows fit in one block, Φ is kept in memory. More rows are encoded, expanded and discarded block by block, so
that a pass costs two matrix products and little memory: by the `kernels` for large tables, by their NumPy twins where
loading the kernels would take longer. All give the same numbers up to rounding, and the choice depends on the call
alone, not on what the process did before.
"""

from peerbayes.passes.blocks import Block, Encoded, Raw, Source, all_rows, columns_of, source_of
from peerbayes.passes.checks import check_rows, first_missing
from peerbayes.passes.evaluation import Evaluation
from peerbayes.passes.forms import Data, labelled, repeated
from peerbayes.passes.held import Held
from peerbayes.passes.plain import Plain
from peerbayes.passes.predictions import log_joint, log_units, posterior
from peerbayes.passes.sizes import FRAME_ROWS
from peerbayes.passes.streamed import Streamed

__all__ = [
    "FRAME_ROWS", "Block", "Data", "Encoded", "Evaluation", "Held", "Plain", "Raw", "Source", "Streamed", "all_rows",
    "check_rows", "columns_of", "first_missing", "labelled", "log_joint", "log_units", "posterior", "repeated",
    "source_of",
]  # fmt: skip
