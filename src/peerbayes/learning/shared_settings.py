"""The settings that simulations and agreements have in common: see `declarations`."""

from __future__ import annotations

from peerbayes.data.declarations import (
    Kind,
    Setting,
    choice,
    optional,
    real_number,
    true_or_false,
    whole_number,
)
from peerbayes.data.registry import Choices
from peerbayes.errors import SchemaError
from peerbayes.learning import planning
from peerbayes.learning.few_bytes import FORMS
from peerbayes.learning.selection import CHECK_EVERY, LAST, SELECTIONS
from peerbayes.model.calibration import STARTS
from peerbayes.model.candidates import AUTO
from peerbayes.model.declared import EXPECTED, structure_in
from peerbayes.model.families import FAMILIES
from peerbayes.model.layout import STRUCTURES
from peerbayes.model.structure import PENALTIES

# More than anyone would wait for.
MOST_ROUNDS, MOST_EXCHANGES = 2**31 - 1, 2**8

# Where rows carry no information, a step of RC takes a class count from S_c to (1 − lr)·S_c + m_c/n. For lr above 2
# that diverges, whatever the rows are. A step below the rounding of float64 is lost in S.
SMALLEST_LR, LARGEST_LR = 2.0**-52, 2.0

FAMILY = Setting(
    "naive-bayes",
    choice(Choices(FAMILIES, *STRUCTURES, AUTO), (*FAMILIES, *STRUCTURES, AUTO)),
    'the model of a class: "naive-bayes", "qda", "lda", "tan", "kdb", "ga2m", "aode"; or "auto": the one of them whose '
    "log loss on held-out rows of all peers is lowest, with a start of its own unless `start` names another",
    "All take missing values",
)
PENALTY = Setting(
    "none",
    choice(tuple(PENALTIES)),
    'what a link costs where the structure is learned (families "tan" and "kdb"), for each parameter that it adds: '
    '"none", "aic" or "bic"; a link that is worth less is refused',
    'With "none", as in the published tables, every link is taken; `TAN` and `KDB` have "aic"',
)
STRUCTURE = Setting(
    None,
    optional(Kind(structure_in, EXPECTED, (list,)), "to learn it from the rows"),
    'the pairs of columns that are linked, a parent and its child each (families "tan" and "kdb"), or crossed '
    '("ga2m"); None: they are learned',
    "With an epsilon, what is learned is paid for by a share of it, and what is declared costs nothing",
    option="",
    example=None,
)
STRATEGY = Setting(
    "auto",
    choice(planning.choices(), planning.names()),
    'how peers learn: "auto" (chooses between the next two), "exact", "relay", "tree-sum", "crc" (the paper\'s), '
    '"tracking", "local", "consensus-ml", "dsgd"',
)
START = Setting(
    "uniform",
    choice(STARTS),
    'the initial statistics of all peers: "uniform" (the paper\'s), or by a sum over all rows "marginal" or "ml"',
)
ROUNDS = Setting(
    64,
    whole_number(1, MOST_ROUNDS),
    "rounds of learning, 64 as in the paper; each has one exchange of messages, or `exchanges`",
)
SELECT = Setting(
    LAST,
    choice(SELECTIONS),
    'which round\'s model all peers end with: "last", or by "held-out" the one with the lowest log loss on all peers\' '
    "held-out rows",
    f"It is agreed by a sum of two numbers every {CHECK_EVERY} rounds; `rounds` is then a limit, see `patience`",
)
PATIENCE = Setting(
    4,
    optional(whole_number(1, MOST_ROUNDS), "for all rounds"),
    f"checks, one every {CHECK_EVERY} rounds, without a lower log loss on held-out rows after which all peers stop "
    'together, with select "held-out"; None: they never do',
)
MESSAGES = Setting(
    "float64",
    choice(tuple(FORMS)),
    'the form of the numbers in messages: "float64", "float32", or "int8" for rounded differences from the message '
    "before, an eighth of the bytes",
    "What rounding leaves out is added to later messages, so that it is lost nowhere",
)
EXCHANGES = Setting(
    None,
    optional(whole_number(1, MOST_EXCHANGES), 'for 4 with messages "int8", otherwise 1'),
    "exchanges of messages in a round of learning: information travels as many hops in it; None: 4 with messages "
    '"int8", otherwise 1',
    "Wherever messages are lost or late, or peers away, each exchange counts as a round",
)
LR = Setting(
    0.05,
    real_number(
        "a positive number up to 2 (the paper's is 0.05): larger steps diverge, and those below 2⁻⁵² are lost in "
        "rounding",
        least=SMALLEST_LR,
        most=LARGEST_LR,
    ),
    "the learning rate of calibration, by which the start weighs m⁰ = m / (lr·n) rows; the paper's is 0.05",
    "At most 2: where rows carry no information, a step takes counts S to (1 − lr)·S + m_c/n, which diverges above 2",
)
LOCAL_STEPS = Setting(1, whole_number(1, MOST_ROUNDS), "steps on a peer's own rows between two messages")
CLIP = Setting(
    5.0,
    optional(real_number("a positive number", SchemaError, above=0.0), "for no clipping"),
    "standard deviations at which continuous columns are clipped; None: no clipping",
)
SECURE_SUM = Setting(
    False,
    true_or_false(),
    "whether messages are masked, so that a neighbour learns only the sum of those it receives",
    "Numbers are rounded to 2⁻³², a peer that misses one message keeps its own, and every peer needs at least three "
    "neighbours",
)
