"""Peers' folders of one network, and the documents of runs that go from one to another without a process."""

import numpy as np
import pandas as pd

from peerbayes.peer.agreement.terms import Limits, Terms
from peerbayes.peer.loopback import Loopback
from peerbayes.peer.runs import Runs
from peerbayes.peer.runs.book import NotYet, RosterNeeded

CHAIN = ((0, 1), (1, 2))


def some_rows(seed, count=40):
    """Rows of one peer: two columns that tell a little of the label."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    values = rng.normal(size=(count, 2)) + labels[:, None]
    return pd.DataFrame({"a": values[:, 0], "b": values[:, 1], "y": np.where(labels, "yes", "no")})


def terms_of(**more):
    return Terms("net", "y", **{"rounds": 12, "strategy": "exact", "limits": Limits(deadline=600.0), **more})


class Folders:
    """A network of folders; a clock that tests set."""

    def __init__(self, folder, links=CHAIN, **more):
        count = 1 + max(max(link) for link in links)
        tables = [some_rows(seed) for seed in range(count)]
        self.network = Loopback.create(folder, terms_of(**more), tables, links)
        self.now = 1_800_000_000.0
        self.runs = {name: self.book(name) for name in self.network.homes}

    def book(self, name):
        return Runs(self.network.homes[name].folder, lambda: self.now)

    def pass_on(self, *names):
        """Have all of these (or everybody) get all documents that the others have."""
        names = names or tuple(self.runs)
        for _ in range(2):  # what came late may be what others waited for
            for receiver in names:
                for sender in names:
                    for path in self.runs[sender].shared().values():
                        self.give(receiver, path.read_bytes(), sender)

    def give(self, receiver, document, sender=None):
        runs = self.runs[receiver]
        try:
            return runs.add(document)
        except RosterNeeded as needed:
            runs.keep_named_roster(self.runs[sender].find(needed.digest).read_bytes(), needed.digest)
            return runs.add(document)
        except NotYet:
            return None

    def states(self, number):
        return {name: runs.entry(number).state for name, runs in self.runs.items()}

    def adopt(self, *names):
        """Give the founder's roster to members."""
        signed = self.network.founder.roster_path.read_bytes()
        for name in names or self.runs:
            self.network.homes[name].join(signed)
