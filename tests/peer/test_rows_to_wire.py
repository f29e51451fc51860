"""What one row does to what leaves a private peer: from the file to the sums that noise is added to, to the bytes."""

import asyncio
import contextlib
import math
import stat
from dataclasses import fields
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from scipy.stats import beta

pytest.importorskip("pyarrow")
from peerbayes.errors import PeerbayesError, PeerError, TermsError
from peerbayes.network import stable
from peerbayes.peer import service
from peerbayes.peer.agreement.column_facts import Facts
from peerbayes.peer.agreement.negotiate import data_digest
from peerbayes.peer.agreement.private_agreement import agree_privately
from peerbayes.peer.agreement.terms import Limits, Privacy, Robust, Terms
from peerbayes.peer.learning.held_out import KEY, held_out, split_key
from peerbayes.peer.learning.masks import summed
from peerbayes.peer.loopback import Loopback
from peerbayes.peer.service import serve, tables_of
from peerbayes.peer.state.audit_log import entries
from peerbayes.peer.state.ledger import epsilon_of
from peerbayes.peer.state.peer_settings import Settings
from peerbayes.peer.state.store import Store
from peerbayes.privacy import accounting
from peerbayes.privacy.mechanism import Mechanism
from peerbayes.privacy.noise import exposure
from shared.commands import SOAK, peerbayes
from shared.neighbouring_tables import (
    DRAWN,
    PEERS,
    Heard,
    Path,
    drawn_row,
    drawn_table,
    drawn_terms,
    forced,
    mu_squared,
    neighbour,
    squared_distance,
)

# What touches rows, each with what a case insists on; the rest is drawn, the hold-out too.
CASES = {
    "as it comes": {},
    "hold-out": {"hold_out": 0.3},
    "half held out": {"hold_out": 0.5, "data": "csv"},
    "query": {"data": "sqlite"},
    "parquet": {"data": "parquet"},
    "compressed": {"data": "csv.gz"},
    "missing values": {"family": "naive-bayes", "missing": True},
    "text that looks missing": {
        "features": ("finding",),
        "data": "csv",
        "family": "naive-bayes",
        "missing": True,
        "classes": ("no", "yes"),
    },
    "classes that look missing": {"classes": ("none", "some", "NA"), "data": "csv"},
    "completions": {"family": "qda", "features": ("age", "dose", "finding", "stage", "smoker")},
    "bought units": {"bought": True, "average_rows": None, "features": ("age", "dose", "stage")},
    "bought units, missing values": {
        "bought": True,
        "missing": True,
        "family": "naive-bayes",
        "features": ("age", "dose"),
    },
    "start ml": {"start": "ml", "secure_sum": False},
    "start marginal": {"start": "marginal", "secure_sum": False},
    "edge noise": {"edge_noise": 3.0, "combine": "mean"},
    "masks": {"secure_sum": True},
    "clipping of messages": {"strategy": "exact", "combine": "clip", "edge_noise": 0.0, "secure_sum": False},
    "figures": {"figures": "warn", "missing": True},
    "figures that stop": {"figures": "stop"},
    "lda": {"family": "lda"},
    "a network of columns": {"family": "bayes-net"},
    "crc": {"strategy": "crc"},
    "relay": {"strategy": "relay"},
    "tracking": {"strategy": "tracking"},
    "local": {"strategy": "local"},
    "auto": {"strategy": "auto"},
    "a learned tree": {"family": "tan", "features": ("age", "dose", "finding", "stage", "smoker")},
    "learned parents": {"family": "kdb", "features": ("age", "finding", "stage")},
    "crosses": {"family": "ga2m", "features": ("age", "dose", "finding", "stage", "smoker")},
    "tight bounds": {"bound": 0.5, "clip": 0.5, "privacy_clip": 0.1},
    "wide bounds": {"bound": 4.0, "clip": None, "privacy_clip": 2.0, "epsilon": 0.3},
}
QUICK, IN_ALL = 6, 10_400  # pairs of each case in the usual tests; and of all cases in a soak
AT_A_TABLE = 6  # neighbours of one table


def test_every_key_of_a_peer_and_of_an_agreement_is_drawn():
    """A new key says here what it does to rows, or this fails."""
    sections = {
        "peer.toml": Settings,
        "agreement.toml": Terms,
        "limits": Limits,
        "privacy": Privacy,
        "robust": Robust,
        "features": Facts,
    }
    assert {name: set(drawn) for name, drawn in DRAWN.items()} == {
        name: {each.name for each in fields(kind)} for name, kind in sections.items()
    }


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"local_steps": 2}, "local_steps 2"),
        ({"strategy": "consensus-ml"}, "strategy 'consensus-ml'"),
        ({"strategy": "dsgd"}, "strategy 'dsgd'"),
        ({"family": "aode", "features": {"age": "binned"}}, "family 'aode'"),
        ({"family": "tan", "robust": Robust("clip")}, "the structure of tan is bought"),
        ({"robust": Robust("clip", True)}, "robust 'guard'"),
        ({"classes": (1, 2**53 + 1)}, "up to 2\\^53"),
        (
            {"facts": {"age": Facts(mean=0.0, sd=1.0, missing=True)}, "family": "lda"},
            "missing values of 'age'",
        ),
    ],
)
def test_what_is_not_drawn_is_refused(more, said):
    usual = {"features": {"age": "continuous"}, "facts": {"age": Facts(mean=0.0, sd=1.0)}, "classes": (0, 1)}
    with pytest.raises(TermsError, match=said):
        Terms("net", "ill", privacy=Privacy(epsilon=1.0), **usual | more)


# --- ‖Δ‖ ≤ G ------------------------------------------------------------------------------------------------


def drawn_path(folder, rng, case):
    """A network by the case; terms that a grid is too coarse for are drawn again."""
    of_peer, of_terms = forced(case)
    for attempt in range(50):
        terms = drawn_terms(rng, **of_terms)
        path = Path.create(folder / str(attempt), terms, rng)
        path.settle(rng, **of_peer)
        path.put(rng, [drawn_row(rng, terms) for _ in range(40)])
        try:
            path.releases(Heard(0))
            return path
        except (ValueError, PeerError) as error:
            assert "grid" in str(error), error
    raise AssertionError("no terms fit")


def compared(folder, case, count, seed, tables=AT_A_TABLE):
    """Neighbouring tables, so many pairs: how far apart their releases are, in what one row may do. [pairs]."""
    rng = np.random.default_rng([seed, *case.encode()])
    apart = []
    while len(apart) < count:
        path = drawn_path(folder / str(len(apart)), rng, CASES[case])
        hidden = hidden_by_neighbours(path)
        for _ in range(6):
            path.settle(rng, **forced(CASES[case])[0])
            rows, heard = drawn_table(rng, path.terms), Heard(int(rng.integers(2**31)))
            one = released(path, rng, rows, heard)
            for _ in range(min(tables, count - len(apart))):
                other = released(path, rng, neighbour(rng, path.terms, rows), heard)
                apart.append(distance(path, one, other, hidden))
    return np.array(apart)


def released(path, rng, rows, heard):
    """All releases of a table; None where too few rows are left to learn from, and so nothing leaves."""
    path.put(rng, rows)
    try:
        return path.releases(heard)
    except PeerError as error:
        assert "the table has" in str(error), error
        return None


def hidden_by_neighbours(path):
    """What edge noise leaves of a row, beside each peer's own noise."""
    privacy = path.terms.privacy
    return (
        exposure(path.home.roster().adjacency(), privacy.edge_noise, privacy.colluders)
        if privacy.edge_noise
        else 1.0
    )


def distance(path, one, other, hidden):
    """The largest ‖Δ‖ of all releases of two tables, as a share of what is declared; which must be at most 1."""
    if one is None or other is None:
        return 0.0
    assert [release.name for release in one] == [release.name for release in other]
    shares = []
    for a, b in zip(one, other, strict=True):
        assert (a.sigma, a.cost, a.limit) == (b.sigma, b.cost, b.limit), "noise that depends on rows"
        squared = squared_distance(a, b)
        assert squared <= a.limit**2, (
            f"{path.draws} {path.terms}: {a.name} moved by {math.sqrt(squared / a.limit**2)}"
        )
        exposed = hidden if a.name.startswith("round") else 1.0
        assert float(a.limit) ** 2 / a.sigma**2 * exposed <= a.cost * (1 + 1e-9), (
            f"{a.name} costs more than its entry"
        )
        shares.append(math.sqrt(squared / a.limit**2))
    return max(shares)


@pytest.mark.parametrize("case", CASES)
def test_one_row_moves_no_release_by_more_than_is_declared(case, tmp_path):
    assert 0.05 < compared(tmp_path, case, QUICK, 1, tables=3).max() <= 1.0


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_ten_thousand_pairs_of_neighbouring_tables(case, tmp_path):
    """All of them with PEERBAYES_SOAK, and a twentieth without."""
    assert 0.5 < compared(tmp_path, case, IN_ALL // len(CASES) // (1 if SOAK else 20), 2).max() <= 1.0


def test_the_pairs_are_ten_thousand():
    assert IN_ALL // len(CASES) * len(CASES) >= 10_000


# --- who is held out ------------------------------------------------------------------------------------------


def labelled(table):
    """Features in the agreement's order, and labels."""
    return table[sorted(set(table) - {"ill"})], table["ill"].to_numpy()


def stratified(frame, labels, share, key):
    """How rows were held out before: a share of every class, drawn by the number of rows."""
    if not share:
        return (frame, labels), None
    rng, away = np.random.default_rng(len(frame)), np.zeros(len(frame), dtype=bool)
    classes = np.unique(labels.astype(str), return_inverse=True)[1]
    for label in range(classes.max(initial=-1) + 1):
        rows = rng.permutation(np.flatnonzero(classes == label))
        away[rows[: int(share * len(rows))]] = True
    return (frame[~away], labels[~away]), (frame[away], labels[away])


def test_the_harness_finds_rows_that_are_held_out_by_others(tmp_path, monkeypatch):
    """The split of before fails where the present one holds."""
    monkeypatch.setattr(service, "held_out", stratified)
    with pytest.raises(AssertionError, match="moved by"):
        compared(tmp_path, "hold-out", 30, 1)


def test_the_harness_finds_text_that_others_turn_into_gaps(tmp_path, monkeypatch):
    """So does reading of CSV files by what all rows look like: rows are read otherwise, or refused."""
    monkeypatch.setattr(Terms, "texts", ())
    with pytest.raises((AssertionError, PeerbayesError)):
        compared(tmp_path, "text that looks missing", 60, 1)


def test_the_harness_finds_a_clip_that_does_not_hold(tmp_path, monkeypatch):
    monkeypatch.setattr("peerbayes.privacy.mechanism.MARGIN", 1.05)
    with pytest.raises(AssertionError, match="moved by"):
        compared(tmp_path, "as it comes", 200, 1)


def peer_with(folder, rows, hold_out=0.4, **terms):
    """A folder whose table has these rows."""
    rng = np.random.default_rng(0)
    usual = {
        "features": ("age", "dose", "finding", "stage", "smoker"),
        "family": "naive-bayes",
        "missing": True,
    }
    path = Path.create(folder, drawn_terms(rng, **usual | terms), rng)
    path.settle(rng, hold_out=hold_out, data="csv", show_exact_figures=False, require={})
    path.put(rng, rows(path.terms) if callable(rows) else rows)
    return path


def plainly(value):
    """A value whatever type other rows make of its column."""
    return None if pd.isna(value) else value if isinstance(value, str) else float(value)


def split_of(path):
    """Rows to learn from and rows to test on, as sets of their values."""
    (kept, of_kept), away = tables_of(path.home.load())
    parts = ((kept, of_kept), away if away is not None else (kept[:0], of_kept[:0]))
    return [
        sorted(
            repr([*map(plainly, row[1:]), plainly(label)])
            for row, label in zip(frame.itertuples(), labels, strict=True)
        )
        for frame, labels in parts
    ]


def test_nothing_but_the_row_decides(tmp_path):
    """Not the others, their number and order, nor columns' order, the kind of file, the peer's other settings."""
    rng = np.random.default_rng(4)
    rows = {}

    def drawn(terms):
        rows["all"] = [drawn_row(rng, terms) for _ in range(200)]
        return rows["all"]

    path = peer_with(tmp_path, drawn)
    kept, away = split_of(path)
    assert 0.25 < len(away) / 200 < 0.55
    for kind in ("csv", "tsv", "csv.gz", "semicolons", "sqlite", "parquet"):
        path.settle(rng, hold_out=0.4, data=kind)
        path.put(rng, rows["all"])
        assert [len(part) for part in split_of(path)] == [len(kept), len(away)]
    path.settle(rng, hold_out=0.4, data="csv")
    for count in (1, 2, 7, 199):
        path.put(rng, rows["all"][:count])
        fewer = split_of(path)
        assert set(fewer[0]) <= set(kept) and set(fewer[1]) <= set(away)
    path.put(rng, rows["all"] + rows["all"][:50])  # twice the same row goes the same way
    twice = split_of(path)
    assert set(twice[0]) == set(kept) and set(twice[1]) == set(away) and len(twice[0]) + len(twice[1]) == 250


def test_the_order_of_the_columns_does_not_matter():
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {"b": rng.normal(size=50), "a": rng.normal(size=50), "c": rng.choice(["u", "v"], 50)}
    )
    labels = rng.integers(2, size=50)
    away = held_out(frame, labels, 0.4, bytes(32))[1][0]
    other = held_out(frame[["c", "a", "b"]], labels, 0.4, bytes(32))[1][0]
    assert away.index.tolist() == other.index.tolist()
    swapped = held_out(frame.rename(columns={"a": "b", "b": "a"}), labels, 0.4, bytes(32))[1][0]
    assert away.index.tolist() != swapped.index.tolist()


@pytest.mark.parametrize("share", [0.05, 0.3, 0.9])
def test_about_the_share_is_held_out_and_a_larger_share_keeps_it(share):
    rng = np.random.default_rng(0)
    frame, labels = (
        pd.DataFrame({"x": rng.normal(size=4000), "c": rng.integers(3, size=4000).astype(str)}),
        rng.integers(2, size=4000),
    )
    (kept, of_kept), (away, of_away) = held_out(frame, labels, share, bytes(32))
    assert abs(len(away) / 4000 - share) < 5 * math.sqrt(share * (1 - share) / 4000)
    assert (
        sorted([*kept.index, *away.index]) == list(range(4000))
        and len(of_kept) == len(kept)
        and len(of_away) == len(away)
    )
    more = held_out(frame, labels, min(0.99, share + 0.05), bytes(32))[1][0]
    assert set(away.index) < set(more.index)
    assert set(away.index) != set(held_out(frame, labels, share, b"x" * 32)[1][0].index)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 2, 3], [1.0, 2.0, 3.0]),
        ([1, 0, 1], [True, False, True]),
        ([1.5, 2.0, 3.0], ["1.5", "2", "3.0"]),
        ([0.0, 1.0, 2.0], [-0.0, 1.0, 2.0]),
        ([np.nan, 1.0, 2.0], [None, 1, 2]),
        ([None, "a", "b"], ["NA", "a", "b"]),
    ],
)
def test_how_a_value_is_written_or_read_does_not_matter(one, other):
    """Other rows can make a column text, or of floats."""
    from peerbayes.peer.learning.held_out import numbers_of_rows as _numbers

    labels = np.array(["a", "b", "c"])
    first, second = (
        _numbers(pd.DataFrame({"x": pd.Series(values, dtype=kind)}), labels, bytes(32))
        for values, kind in ((one, None), (other, object))
    )
    assert np.array_equal(first, second) and len(set(first)) == 3


def test_no_row_may_be_held_out_and_classes_may_have_none_to_learn_from():
    frame, labels = pd.DataFrame({"x": [1.0, 2.0]}), np.array(["a", "b"])
    (kept, _), away = held_out(frame, labels, 1e-9, bytes(32))
    assert len(kept) == 2 and away is None
    (kept, _), away = held_out(frame, labels, 1 - 1e-9, bytes(32))
    assert len(kept) == 0 and len(away[0]) == 2


def test_the_key_is_its_owners_alone_and_made_once(tmp_path):
    first = split_key(tmp_path)
    path = tmp_path / KEY
    assert len(first) == 32 and split_key(tmp_path) == first and list(tmp_path.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    other = tmp_path / "other"
    other.mkdir()
    assert split_key(other) != first
    with mock.patch("os.link", side_effect=PermissionError):  # a file system without links
        without = tmp_path / "without"
        without.mkdir()
        assert split_key(without) == (without / KEY).read_bytes() and [*without.iterdir()] == [without / KEY]
    path.write_bytes(b"short")
    with pytest.raises(PeerError, match="has 5 bytes; expected the 32"):
        split_key(tmp_path)


def test_a_check_before_a_run_sees_the_same_split_and_leaving_keeps_it(tmp_path):
    path = peer_with(
        tmp_path, lambda terms: drawn_table(np.random.default_rng(3), terms), average_rows=30.0, bought=False
    )
    told = peerbayes("peer", "check", path.home.folder, "--format", "json").stdout
    kept, away = split_of(path)
    assert (
        f"{len(kept):,} rows as the agreement describes them" in told
        and f"{len(away):,} more rows to test on" in told
    )
    with contextlib.closing(Store(path.home.state_path)):
        pass
    service.set_aside(path.home)
    assert split_of(path) == [kept, away]


@pytest.mark.parametrize(
    ("query", "warned"), [("SELECT * FROM rows", False), ("SELECT * FROM rows LIMIT 20", True)]
)
def test_a_check_warns_of_queries_whose_rows_depend_on_each_other(query, warned, tmp_path):
    rng = np.random.default_rng(6)
    path = peer_with(tmp_path, lambda terms: [drawn_row(rng, terms) for _ in range(40)], 0.0)
    rows = [drawn_row(rng, path.terms) for _ in range(40)]
    path.settle(rng, data="sqlite", query=query, require={}, hold_out=0.0)
    path.put(rng, rows)
    told = " ".join(peerbayes("peer", "check", path.home.folder).stdout.split())
    assert ("it says LIMIT: where one record changes several rows" in told) == warned


def test_a_run_with_other_rows_held_out_does_not_go_on(tmp_path):
    """One that was begun with the split of before, or whose key was lost: nothing leaves, and it says what may be."""
    network, table = canary_path(tmp_path, 80)
    home = network.homes["peer-1"]
    old, _ = stratified(*labelled(table), 0.2, b"")
    for lost in (False, True):
        rows = tables_of(home.load())[0] if lost else old
        with contextlib.closing(Store(home.state_path)) as store:
            store.keep("data", data_digest(*rows))
        if lost:
            (home.folder / KEY).unlink()
        with pytest.raises(
            PeerError, match=r"other rows: the data has changed, or which of them are held out \(hold_out"
        ):
            asyncio.run(serve(home, 0.0))
        assert not list(entries(home.audit_path))


# --- what the agreement does not describe ------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("hold_out", [0.0, 0.5])
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("finding", "unheard of"),
        ("stage", 7),
        ("stage", "late"),
        ("smoker", "perhaps"),
        ("age", "old"),
        ("age", math.inf),
        ("dose", None),
        ("ill", "maybe"),
        ("ill", None),
    ],
)
def test_of_a_table_that_the_agreement_does_not_describe_nothing_leaves(column, value, hold_out, tmp_path):
    """Whichever row it is, to learn from or to test on: the peer stops before it has asked for any sum of its rows."""
    rng = np.random.default_rng(5)
    path = peer_with(tmp_path, [{"ill": 0}], hold_out, missing=False, bought=True, average_rows=None)
    rows = [drawn_row(rng, path.terms) for _ in range(60)]
    for place in (0, 30):
        path.put(rng, [*rows[:place], rows[place] | {column: value}, *rows[place + 1 :]])
        went_on = mock.patch(
            "shared.neighbouring_tables.agree_privately", side_effect=AssertionError("it went on")
        )
        with went_on, pytest.raises(PeerbayesError):
            path.releases(Heard(0))
    path.put(rng, rows)
    assert path.releases(Heard(0))


# --- a canary through a run -------------------------------------------------------------------------------


def canary_path(folder, rows, epsilon=1.0, rounds=16, **privacy):
    """A private peer that holds rows out, whose agreement declares all it can."""
    known = {"x": Facts(0.0, 1.0), "z": Facts(0.0, 1.0), "sex": Facts(categories=("f", "m"))}
    kinds = {"x": "continuous", "z": "continuous", "sex": "discrete"}
    terms = Terms(
        "canary", "ill", kinds, known, ("no", "yes"), rounds=rounds, limits=Limits(quorum=1.0),
        privacy=Privacy(epsilon=epsilon, rows=float(rows), min_rows=10, **privacy),
    )  # fmt: skip
    rng = np.random.default_rng(rows)
    ill = rng.random(rows) < 0.4
    table = pd.DataFrame(
        {
            "x": rng.normal(size=rows) + ill, "z": rng.normal(size=rows) - ill,
            "sex": rng.choice(["f", "m"], rows), "ill": np.where(ill, "yes", "no"),
        }
    )  # fmt: skip
    tables = [table, *(table.sample(60, random_state=place) for place in range(1, PEERS))]
    links = [(a, b) for b in range(PEERS) for a in range(b)]
    network = Loopback.create(folder, terms, tables, links)
    home = network.homes["peer-1"]
    home.settings_path.write_text(home.settings_path.read_text().replace("# hold_out", "hold_out"))
    return network, table


LOUD = {"x": 1e9, "z": -1e9, "sex": "m", "ill": "yes"}


def both(home, table, look):
    """What `look` sees of the table, and of the table with a canary that is learned from, and not held out."""
    found = []
    for place in range(100):
        canary = pd.DataFrame([LOUD | {"z": -1e9 * (1 + place / 100)}])
        rows = pd.concat([table[:place], canary, table[place:]])
        rows.to_csv(home.folder / "rows.csv", index=False)
        (frame, _), _ = tables_of(home.load())
        if (frame["x"] == LOUD["x"]).any():
            found.append(look(home))
            break
    table.to_csv(home.folder / "rows.csv", index=False)
    return look(home), found[0]


def true_epsilon(home, table):
    """ε of all rounds of a run with and without the canary, from ‖Δ‖ and σ alone, at the statistics of the start."""
    path = Path(home.load().terms, home)
    without, with_it = both(home, table, lambda _: path.releases(Heard(0, 1)))
    terms = home.load().terms
    squared = terms.rounds * mu_squared([(without[0], with_it[0])])
    return accounting.epsilon_of(math.sqrt(squared), terms.privacy.delta)


@pytest.mark.parametrize("rows", [400, pytest.param(5000, marks=pytest.mark.long)])
def test_the_true_epsilon_of_a_canary_is_the_promised_one_at_most(rows, tmp_path):
    network, table = canary_path(tmp_path, rows)
    assert 0.5 < true_epsilon(network.homes["peer-1"], table) <= 1.0


@pytest.mark.parametrize(("rows", "least"), [(400, 4.0), pytest.param(5000, 30.0, marks=pytest.mark.long)])
def test_a_canary_finds_a_split_that_other_rows_decide(rows, least, tmp_path, monkeypatch):
    """Of a promised 1, what the split of before gave away."""
    network, table = canary_path(tmp_path, rows)
    monkeypatch.setattr(service, "held_out", stratified)
    assert true_epsilon(network.homes["peer-1"], table) > least


def first_messages(home, count):
    """The first message of a peer as it would leave, many times over with the noise of the operating system: bytes."""
    peer = home.load()
    (frame, labels), _ = tables_of(peer)

    async def never(*asked):
        raise AssertionError("all is declared")

    agreed = asyncio.run(agree_privately(peer.name, frame, labels, peer.terms, peer.roster, never, never))
    said = []
    for _ in range(count):
        state = agreed.learner.begin()
        (message, *_) = agreed.learner.outgoing(state).values()
        agreed.private.taken()
        said.append(message.astype("<f8").tobytes())
    return agreed, np.stack([np.frombuffer(body, dtype="<f8") for body in said])


def proved(folder, runs, epsilon, split=held_out):
    """The largest ε that a test for one row proves at 99.9 % confidence, from bytes of one round; and what it may."""
    network, table = canary_path(folder, 400, epsilon, rounds=1)
    home = network.homes["peer-1"]
    with mock.patch.object(service, "held_out", split):
        (agreed, absent), (_, present) = both(home, table, lambda home: first_messages(home, runs))
    direction = present[: runs // 2].mean(axis=0) - absent[: runs // 2].mean(axis=0)  # learned from one half
    noise = np.linalg.pinv(np.cov(absent[: runs // 2].T))
    with_it, without = (each[runs // 2 :] @ (noise @ direction) for each in (present, absent))
    count, best, delta = len(with_it), 0.0, agreed.private.scheme.ledger.delta
    for at in np.quantile(np.concatenate([with_it, without]), np.linspace(0.01, 0.99, 50)):
        missed = beta.ppf(0.9999, (with_it < at).sum() + 1, max(count - (with_it < at).sum(), 1))
        false = beta.ppf(0.9999, (without >= at).sum() + 1, max(count - (without >= at).sum(), 1))
        for error, other in ((missed, false), (false, missed)):
            if error < 1 and other > 0 and 1 - delta - error > 0:
                best = max(best, math.log((1 - delta - error) / other))
    ledger = agreed.private.scheme.ledger
    return best, accounting.epsilon_of(math.sqrt(ledger.each), delta)


@pytest.mark.long
def test_many_runs_with_a_canary_prove_no_more_than_was_promised(tmp_path):
    best, promised = proved(tmp_path, 2000, 2.0)
    assert 0.0 < best <= promised <= 2.0


@pytest.mark.long
def test_many_runs_with_a_canary_find_a_split_that_other_rows_decide(tmp_path):
    best, promised = proved(tmp_path, 2000, 2.0, stratified)
    assert best > promised


# --- the bytes ----------------------------------------------------------------------------------------------


def run_of(network, table, home):
    """A whole run of five peers over links with mutual TLS as `peer run` goes, without noise: first bytes to peer-2."""
    table.to_csv(home.folder / "rows.csv", index=False)
    for each in network.homes.values():
        for name in ("state.sqlite", "state.sqlite-wal", "state.sqlite-shm", "audit.jsonl"):
            (each.folder / name).unlink(missing_ok=True)

    async def all_of_them():
        return await asyncio.gather(*(serve(each, 3600.0) for each in network.homes.values()))

    with mock.patch.object(Mechanism, "noise", lambda self, shape, *_: np.zeros(shape, dtype=np.int64)):
        assert all(stopped.done for stopped in asyncio.run(all_of_them()))
    said = {}
    for name, each in network.homes.items():
        if name != "peer-2":
            with contextlib.closing(Store(each.state_path, readonly=True)) as store:
                said[name] = store.message(1, "peer-2")[0]
                spent = epsilon_of(store.releases(), 1e-5)
                assert 0.99 < spent <= 1.0
    return said


@pytest.mark.long
@pytest.mark.parametrize("secure_sum", [False, True])
def test_bytes_of_two_runs_differ_by_what_one_row_may_do(secure_sum, tmp_path):
    """The first messages of two real runs, of neighbouring files with rows held out: no farther apart in h than G."""
    network, table = canary_path(tmp_path, 80, secure_sum=secure_sum)
    home = network.homes["peer-1"]
    without, with_it = both(
        home, table, lambda _: run_of(network, pd.read_csv(home.folder / "rows.csv"), home)
    )
    assert len(tables_of(home.load())[1][1])
    agreed, _ = first_messages(home, 1)
    mechanism, boost = agreed.private.scheme.mechanism, agreed.learner.strategy.boost
    if secure_sum:  # only all four together are a sum, in which what this peer says has a weight
        one, other = (
            summed(np.frombuffer(words, dtype="<u8") for words in said.values())
            for said in (without, with_it)
        )
        boost *= stable(home.roster().adjacency())[[1], :].toarray()[0, 0]
    else:
        one, other = (np.frombuffer(said["peer-1"], dtype="<f8") for said in (without, with_it))
        assert all(without[name] == with_it[name] for name in without if name != "peer-1")
    apart = (other - one).reshape(agreed.learner.start.shape) / boost
    moved = np.linalg.norm(mechanism.coordinates.to(apart))
    assert 0.1 * mechanism.clip < moved <= mechanism.clip * (1 + 1e-7)
