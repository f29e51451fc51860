"""Two tables that differ by one row, as files, through the path of `peer run` to the sums that noise is added to.

A pair of neighbouring tables is what differential privacy is about: the same rows, and one row more in one of them.
Both are written to a file or a database, in an order of rows and columns of their own, and go the way that `peer run`
goes:

    home.load → service.tables_of → agree_privately → PrivateResidual.sums

What others say is the same for both, and chosen by an adversary: sums of the agreement, statistics heard in rounds.
What is compared are whole numbers: Σ of a release before its noise, with the σ that the noise has and the cost in the
ledger.

`DRAWN` has every key of `peer.toml` and of the agreement, with how it is drawn. A key that is not in it fails a test.
"""

import contextlib
import csv
import gzip
import math
import sqlite3
from dataclasses import dataclass, field
from fractions import Fraction
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from peerbayes.learning import planning
from peerbayes.model.layout import LEARNED, known
from peerbayes.peer.agreement.agreed_figures import private_figures
from peerbayes.peer.agreement.column_facts import Facts
from peerbayes.peer.agreement.private_agreement import agree_privately
from peerbayes.peer.agreement.terms import FIGURES, NO_FIGURES, Limits, Privacy, Robust, Terms
from peerbayes.peer.agreement.tree_sums import Integers
from peerbayes.peer.learning.held_out import KEY, KEY_BYTES
from peerbayes.peer.loopback import Loopback
from peerbayes.peer.service import tables_of
from peerbayes.peer.state.folder import Home, Settings
from peerbayes.peer.state.peer_settings import SHARES
from peerbayes.privacy import counts as counts_module
from peerbayes.privacy import units as units_module
from peerbayes.privacy.counts import RowCounts
from peerbayes.privacy.mechanism import Mechanism
from peerbayes.privacy.pair_tables import PairTables
from peerbayes.privacy.units import Units

PROTECTED = ("exact", "crc", "tracking", "relay", "local", "auto")
SUMMED = planning.names(lambda declaration: declaration.summed)
assert set(PROTECTED) == set(planning.names(lambda declaration: not declaration.exposes))

PEERS = 5  # all linked: edge noise and masks need three neighbours each
LINKS = tuple((a, b) for b in range(PEERS) for a in range(b))

# Text that a reader of CSV files may take for a missing value or for a number, where it is a category.
TRAPS = ("none", "NA", "-", "1", "0x1", "mild")


# --- what is drawn: every key -----------------------------------------------------------------------------


def of(*choices):
    """Draw one of these."""
    return lambda rng: choices[int(rng.integers(len(choices)))]


def only(value):
    """Draw the one value that goes with an epsilon: a test says that others are refused."""
    return lambda rng: value


DRAWN = {
    "peer.toml": {
        "name": only("peer-1"),  # as in its certificate; other names: `test_nothing_but_the_row_decides`
        "address": of("127.0.0.1:7443", "localhost:7443", "[::1]:7443"),
        "listen": of("127.0.0.1:7443", "0.0.0.0:7443"),
        "data": of("csv", "tsv", "csv.gz", "semicolons", "parquet", "sqlite"),
        "query": of(
            "SELECT * FROM rows",
            "SELECT age, dose * 1 AS dose, finding, stage, smoker, ill FROM rows WHERE age IS NULL OR age = age",
            "SELECT * FROM rows WHERE ill = 'x' UNION ALL SELECT * FROM rows",
        ),
        "hold_out": of(0.0, 0.1, 0.3, 0.5),
        "show_exact_figures": of(False, True),
        "proxy": of(None, "http://proxy:3128"),
        "renews": only(None),  # of certificates
        "same_rows": only(()),  # what was released elsewhere: tests/peer/test_same_rows.py
        "share_figures": of(*SHARES),
        "require": of({}, {"epsilon": 1e6, "min_rows": 1}),
    },
    "agreement.toml": {
        "network": of("clinics", "n"),
        "label": only("ill"),
        "features": of(
            ("age", "dose", "finding", "stage", "smoker"), ("age", "finding"), ("stage", "smoker"), ("dose",)
        ),
        "facts": only(None),  # drawn by column below
        "classes": of(("no", "yes"), ("none", "some", "NA"), (0, 1, 2), (False, True), (-1, 7)),
        "family": of(*(name for name in known() if name != "aode")),
        "strategy": of(*PROTECTED),
        "packages": only(()),  # families and strategies of packages: tests/project/test_outside_package.py
        "start": of("uniform", "marginal", "ml"),
        "rounds": of(1, 3, 8),
        "lr": of(0.05, 1.0),
        "local_steps": only(1),
        "clip": of(None, 0.5, 5.0),
        "limits": only(None),
        "privacy": only(None),
        "robust": only(None),
        "messages": only("float64"),  # rounding follows the noise: tests/peer/test_few_byte_peers.py
        "exchanges": only(None),
        "penalty": of("none", "bic"),
        "structure": only(None),  # learned, which is a release; what is declared depends on no row
        "select": only("last"),  # "held-out" is refused with an epsilon
        "patience": only(4),
        "figures": of(*FIGURES),
        "tolerance": only(None),  # of tree-sum, whose sums an epsilon excludes
        "evaluation": only("none"),  # "sites" is refused with an epsilon
    },
    "limits": {
        "deadline": of(1.0, 60.0),
        "quorum": of(0.5, 1.0),
        "message_bytes": of(1 << 20, 64 << 20),
        "rows": of(1, 3),
    },
    "privacy": {
        "secure_sum": of(False, True),
        "epsilon": of(0.3, 1.0, 4.0),
        "delta": of(1e-5, 1e-3),
        "clip": of("auto", 0.1, 0.7, 2.0),
        "bound": of(0.5, 1.0, 3.0, 4.0),
        "edge_noise": of(0.0, 3.0),
        "colluders": of(1, 2),
        "min_rows": of(1, 2),
        "rows": of(None, 20.0, 1000.0),
        "structure_share": of(0.05, 0.5),
    },
    "robust": {"combine": of("mean", "clip"), "guard": only(False)},
    "features": {
        "mean": of(-3.0, 0.0, 50.0),
        "sd": of(0.5, 20.0),
        "range": of((0.0, 110.0), (-1.0, 1.0)),
        "categories": only(None),  # as the column has them
        "missing": of(False, True),
        "edges": of((), (), (1.5,), (-2.0, 0.0, 40.0)),  # none: the column is continuous
    },
}
CATEGORIES = {"finding": TRAPS, "stage": (0, 1, 2), "smoker": (False, True)}


def drawn_terms(rng, **forced):
    """Terms that make sense together; what is forced stays, and decides what else can be."""
    pick = {
        name: forced.get(name, draw(rng))
        for section in ("agreement.toml", "privacy", "robust")
        for name, draw in DRAWN[section].items()
        if not (section == "privacy" and name in ("clip", "rows"))
    }
    privacy_clip = forced.get("privacy_clip", DRAWN["privacy"]["clip"](rng))
    average = forced.get("average_rows", DRAWN["privacy"]["rows"](rng))
    if pick["secure_sum"] and "secure_sum" in forced:
        pick |= {"start": "uniform", "combine": "mean"}
        pick["strategy"] = pick["strategy"] if pick["strategy"] in SUMMED else "exact"
    elif pick["strategy"] not in SUMMED or pick["start"] != "uniform":
        pick["secure_sum"] = False
    if pick["edge_noise"] or pick["secure_sum"] or pick["strategy"] not in ("exact", "crc", "auto"):
        pick["combine"] = "mean"
    if (
        pick["combine"] == "clip" and "combine" in forced
    ):  # whoever expects liars buys nothing that one could move
        forced, average = forced | {"bought": False}, average or 40.0
        pick["start"] = "uniform"
    elif pick["combine"] == "clip" and not (
        pick["start"] == "uniform" and average and forced.get("bought") is False
    ):
        pick["combine"] = "mean"
    if pick["family"] in LEARNED and pick["combine"] == "clip":  # a liar could move what is learned
        pick |= {"family": "naive-bayes"} if "combine" in forced else {"combine": "mean"}
    if not pick["edge_noise"]:
        pick["colluders"] = 1
    may_miss = pick["family"] == "naive-bayes" and forced.get("missing", True)
    facts, binned = {}, set()
    for name in pick["features"]:
        edges = DRAWN["features"]["edges"](rng)
        missing = may_miss and (bool(forced.get("missing")) or DRAWN["features"]["missing"](rng))
        if name in CATEGORIES:
            facts[name] = Facts(categories=CATEGORIES[name], missing=missing)
        elif edges and not forced.get("bought"):
            facts[name] = Facts(edges=edges, missing=missing)
        elif forced.get("bought", rng.random() < 0.5):
            facts[name] = Facts(range=DRAWN["features"]["range"](rng), missing=missing)
        else:
            facts[name] = Facts(DRAWN["features"]["mean"](rng), DRAWN["features"]["sd"](rng), missing=missing)
        if edges:
            binned.add(name)
    kinds = {
        name: "discrete" if name in CATEGORIES else "binned" if name in binned else "continuous"
        for name in pick["features"]
    }
    return Terms(
        pick["network"], pick["label"], kinds, facts, pick["classes"], pick["family"], pick["strategy"], pick["start"],
        pick["rounds"], pick["lr"], 1, pick["clip"],
        Limits(**{name: draw(rng) for name, draw in DRAWN["limits"].items()}),
        Privacy(
            pick["secure_sum"], pick["epsilon"], pick["delta"], privacy_clip, pick["bound"], pick["edge_noise"],
            pick["colluders"], pick["min_rows"], average, pick["structure_share"],
        ),
        Robust(pick["combine"]), penalty=pick["penalty"], figures=pick["figures"],
    )  # fmt: skip


# --- rows, and files of them -----------------------------------------------------------------------------

# Numbers as clinics write them, and as nobody should.
NUMBERS = (0, 1, 3, -2, 0.1, 2.5, -7.25, 1e-300, 1e9, -1e300, 54, 5e-324, 2**53 + 1, -0.0)


def drawn_row(rng, terms):
    """A row that the agreement describes: values by column, None where missing."""
    row = {"record": int(rng.integers(10**6))}  # a column that no agreement names
    for name in ("age", "dose", "finding", "stage", "smoker"):
        facts = terms.facts.get(name, Facts())
        if facts.missing and rng.random() < 0.3:
            row[name] = None
        elif name in CATEGORIES:
            row[name] = CATEGORIES[name][int(rng.integers(len(CATEGORIES[name])))]
        elif rng.random() < 0.3:
            row[name] = NUMBERS[int(rng.integers(len(NUMBERS)))]
        else:
            row[name] = float(rng.normal(20.0, 30.0))
    row[terms.label] = terms.classes[int(rng.integers(len(terms.classes)))]
    return row


def drawn_table(rng, terms):
    """Some rows; now and then all alike in a column, so that one row more changes what the column looks like."""
    rows = [drawn_row(rng, terms) for _ in range(int(rng.integers(12, 40)))]
    for name in (*CATEGORIES, terms.label):
        if rng.random() < 0.3:
            rows = [row | {name: rows[0][name]} for row in rows]
    if rng.random() < 0.3:
        rows = [row | {"age": int(rng.integers(100))} for row in rows]  # whole numbers only
    if rng.random() < 0.3:
        rows += rows[: len(rows) // 2]  # duplicates: the same row, counted twice
    return rows


def neighbour(rng, terms, rows):
    """The table with one row more, which may be one that it has already; or with one row less."""
    kind = rng.random()
    if kind < 0.3:
        gone = int(rng.integers(len(rows)))
        return rows[:gone] + rows[gone + 1 :]
    more = dict(rows[int(rng.integers(len(rows)))]) if kind < 0.5 else drawn_row(rng, terms)
    return [*rows, more]


def written(rng, rows, folder, kind, query):
    """Write rows in random order, columns too; return what `data` and `query` of peer.toml say then."""
    rows = [rows[place] for place in rng.permutation(len(rows))]
    names = [str(name) for name in rng.permutation(list(rows[0]))]
    if kind == "sqlite":
        path = folder / "rows.db"
        path.unlink(missing_ok=True)
        with contextlib.closing(sqlite3.connect(path)) as database:
            database.execute(f"CREATE TABLE rows ({', '.join(names)})")
            places = ", ".join("?" * len(names))
            database.executemany(
                f"INSERT INTO rows VALUES ({places})", [[row[name] for name in names] for row in rows]
            )
            database.commit()
        return f"sqlite:///{path}", query
    if kind == "parquet":
        pq.write_table(pa.table({name: _typed(name, rows) for name in names}), folder / "rows.parquet")
        return str(folder / "rows.parquet"), None
    end = {"semicolons": "csv"}.get(kind, kind)
    separator = {"tsv": "\t", "semicolons": ";"}.get(kind, ",")
    path = folder / f"rows.{end}"
    with (gzip.open if end.endswith("gz") else open)(path, "wt", newline="") as file:
        lines = csv.writer(file, delimiter=separator)
        lines.writerow(names)
        lines.writerows([_text(row[name], name, rng) for name in names] for row in rows)
    return str(path), None


def _typed(name, rows):
    values = [row[name] for row in rows]
    if name in ("age", "dose") and not all(isinstance(value, int) for value in values):
        values = [None if value is None else float(value) for value in values]
    return pa.array(values, from_pandas=False)


def _text(value, name, rng):
    if value is None and name in ("age", "dose"):
        return ("", "NA", "-", " ?")[int(rng.integers(4))]  # as people write it among numbers
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


# --- the path --------------------------------------------------------------------------------------------


@dataclass
class Release:
    """Σ of a release before its noise, as whole numbers; σ of the noise and μ² in the ledger, for the same grid."""

    name: str
    sums: np.ndarray
    sigma: int
    cost: float
    limit: Fraction
    """How far one row may move the sum, in steps of the grid."""


@dataclass
class Heard:
    """What the others say: the same whatever this peer's rows are."""

    seed: int
    rounds: int = 3

    def sum(self, own):
        """The sum of all peers in the agreement: anything of the right shape."""
        rng = np.random.default_rng([self.seed, own.values.size])
        scale = float(2 ** rng.integers(20, 34))
        return Integers(np.rint(rng.normal(1.0, 1.0, own.values.shape) * scale).astype(np.int64))

    def statistics(self, start):
        """Statistics that rounds begin with: the start, near it, and crafted to make some rows loud."""
        rng, top = np.random.default_rng(self.seed), float(np.abs(start).max())
        yield start
        for kind in rng.integers(4, size=self.rounds - 1):
            moved = rng.normal(size=start.shape) * top
            if kind == 0:
                yield start + 0.1 * moved
            elif kind == 1:
                yield moved * 10.0 ** rng.integers(-3, 250)
            elif kind == 2:  # a class that is everywhere, and one that is at a point
                crafted = start.copy()
                crafted[0] *= 1e6
                crafted[-1, 1:] = moved[-1, 1:]
                yield crafted
            else:
                yield np.where(rng.random(start.shape) < 0.3, 0.0, moved)


@dataclass
class Path:
    """The folders of a network whose first peer's table changes."""

    terms: Terms
    home: Home
    draws: dict = field(default_factory=dict)
    parsed: Terms | None = None

    @classmethod
    def create(cls, folder, terms, rng):
        """Create the folders; the key of the split is drawn too, so that every run holds the same rows out."""
        import pandas as pd

        nothing = [pd.DataFrame({"none": [0]})] * PEERS
        addresses = [f"127.0.0.1:{7443 + place}" for place in range(PEERS)]
        home = Loopback.create(folder, terms, nothing, LINKS, addresses).homes["peer-1"]
        (home.folder / KEY).write_bytes(rng.bytes(KEY_BYTES))
        return cls(terms, home)

    def _read(self, path):
        """The agreement as `Terms.read` reads it: once a network, since it takes long, and nobody changes it."""
        if self.parsed is None:
            self.parsed = Terms.parse(path.read_text(), str(path))
        return self.parsed

    def settle(self, rng, **forced):
        """Draw peer.toml."""
        self.draws = {name: forced.get(name, draw(rng)) for name, draw in DRAWN["peer.toml"].items()}

    def put(self, rng, rows):
        """Write the table and peer.toml."""
        data, query = written(rng, rows, self.home.folder, self.draws["data"], self.draws["query"])
        settings = Settings(**self.draws | {"data": data, "query": query})
        self.home.settings_path.write_text(settings.to_toml(self.home.folder))

    def releases(self, heard):
        """What would leave, release by release; PeerbayesError: nothing would."""
        with mock.patch.object(Terms, "read", self._read):
            peer = self.home.load()
        (frame, labels), _ = tables_of(peer)
        told = []

        async def total(phase, own):
            return heard.sum(own)

        async def buy(name, cost, make):
            with recording() as record:
                released = make()
            told.append(record.release(name, cost))
            return released

        agreed = finished(agree_privately(peer.name, frame, labels, peer.terms, peer.roster, total, buy))
        private = agreed.private
        if peer.terms.figures != NO_FIGURES:
            finished(
                private_figures(
                    frame, labels, agreed.schema, peer.terms, agreed.peers, total, buy, private.source
                )
            )
        for number, stats in enumerate(heard.statistics(agreed.learner.start), start=1):
            with recording() as record:
                private(stats[None])
            pending = private.taken()
            told.append(record.release(pending.name, pending.cost))
            private.done = min(number, private.scheme.ledger.rounds - 1)
        return told


def finished(coroutine):
    """What a coroutine returns that waits for nobody; a loop for each would take longer than the rest."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")


class Record:
    """What a release was made of."""

    def __init__(self):
        self.sums, self.sigma, self.limit = [], [], []

    def release(self, name, cost):
        assert len(self.sums) == 1, f"{name}: {len(self.sums)} sums of rows; expected one"
        return Release(name, self.sums[0], self.sigma[0], cost, self.limit[0])


@contextlib.contextmanager
def recording():
    """Note the sums of rows that are asked for, and draw no noise for them."""
    record, clipped, of_units, of_tables = Record(), Mechanism.clipped, Units.sums, PairTables.sums
    of_counts = RowCounts.counts

    def sums_of_clipped(mechanism, steps, rows, clip=None, lengths=None):
        record.sums.append(clipped(mechanism, steps, rows, clip, lengths))
        record.limit.append(Fraction(mechanism.clip if clip is None else clip) * 2**mechanism.bits)
        return record.sums[-1].copy()

    def sums_of_units(asked, values):
        record.sums.append(of_units(asked, values))
        record.limit.append(Fraction(asked.most))
        return record.sums[-1].copy()

    def sums_of_tables(asked, rows, labels):
        record.sums.append(of_tables(asked, rows, labels))
        record.limit.append(Fraction(asked.most))
        return record.sums[-1].copy()

    def counts_of_rows(asked, labels, missing):
        record.sums.append(of_counts(asked, labels, missing))
        record.limit.append(Fraction(math.sqrt(2 + asked.columns) * (1 + 1e-12)) * counts_module.ONE)
        return record.sums[-1].copy()

    def no_noise_of_tables(asked, peers, source):
        record.sigma.append(asked.sigma)
        return np.zeros((peers, asked.size), dtype=np.int64)

    def no_noise(mechanism, shape, source, sigma=None):
        record.sigma.append(sigma or mechanism.sigma)
        return np.zeros(shape, dtype=np.int64)

    def no_noise_of_units(sigma, count, source):
        record.sigma.append(sigma)
        return np.zeros(count, dtype=np.int64)

    with (
        mock.patch.object(Mechanism, "clipped", sums_of_clipped),
        mock.patch.object(Mechanism, "noise", no_noise),
        mock.patch.object(Units, "sums", sums_of_units),
        mock.patch.object(PairTables, "sums", sums_of_tables),
        mock.patch.object(PairTables, "noise", no_noise_of_tables),
        mock.patch.object(units_module, "discrete_gaussian", no_noise_of_units),
        mock.patch.object(RowCounts, "counts", counts_of_rows),
        mock.patch.object(counts_module, "discrete_gaussian", no_noise_of_units),
    ):
        yield record


# --- what is compared ------------------------------------------------------------------------------------


def squared_distance(one, other):
    """‖Δ‖² of two releases, exactly: a whole number."""
    assert one.name == other.name and one.sums.shape == other.sums.shape
    return sum((int(a) - int(b)) ** 2 for a, b in zip(one.sums.flat, other.sums.flat, strict=True))


def mu_squared(pairs, exposure=1.0):
    """μ² of what both tables would release: Σ ‖Δ‖²/σ², times what edge noise leaves of it."""
    return math.fsum(squared_distance(a, b) / a.sigma**2 for a, b in pairs) * exposure


def forced(case):
    """The settings that a case insists on, without those of peer.toml: two mappings."""
    of_peer = {name: value for name, value in case.items() if name in DRAWN["peer.toml"]}
    return of_peer, {name: value for name, value in case.items() if name not in of_peer}
