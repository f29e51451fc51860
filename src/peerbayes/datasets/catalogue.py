"""Every dataset by its name, in the order of the paper's table; scikit-learn's come last."""

from peerbayes.datasets.bundled import BUNDLED
from peerbayes.datasets.images import IMAGES
from peerbayes.datasets.registry import Entry
from peerbayes.datasets.tabular import TABLES

PAPER = (
    "skin", "pulsar", "catsvsdogs", "bank", "default", "soft", "adult", "run", "smartgrid", "smoking", "yearbook",
    "secondary", "fashion", "cifar10", "mnist", "letter",
)  # fmt: skip

_entries = {entry.name: entry for entry in (*TABLES, *IMAGES, *BUNDLED)}

ENTRIES: dict[str, Entry] = {name: _entries[name] for name in dict.fromkeys((*PAPER, *_entries))}
