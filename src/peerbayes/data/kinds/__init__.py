"""The kinds of columns, each a value that knows all about it: a new one is a file beside these and a line here."""

from peerbayes.data.kinds.binned import Binned
from peerbayes.data.kinds.count import Count
from peerbayes.data.kinds.discrete import Discrete
from peerbayes.data.kinds.kind import Continuous, Kind
from peerbayes.data.kinds.positive import Positive
from peerbayes.data.kinds.supervised import Supervised

KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (Continuous(), Discrete(), Binned(), Supervised(), Positive(), Count())
}
