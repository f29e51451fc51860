"""Families, strategies, topologies, sources and report sections of outside packages, by entry points.

The example is installed by pip; packages that are broken or clash with it are written by hand.
"""

import asyncio
import importlib
import itertools
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_wine

import peerbayes as pb
from peerbayes import network
from peerbayes.data import files, registry, sources
from peerbayes.errors import ExtensionError, NotSupported, SourceError, TermsError
from peerbayes.estimators.classifiers import ESTIMATOR_OF
from peerbayes.learning.strategies import STRATEGIES
from peerbayes.model.families import FAMILIES
from peerbayes.network.topologies import TOPOLOGIES
from peerbayes.peer.agreement.column_facts import Facts
from peerbayes.peer.agreement.terms import Limits, Privacy, Robust, Terms, packages_of
from peerbayes.peer.loopback import Loopback
from peerbayes.report.page import REPORT_SECTIONS
from shared import private_agreements
from shared.commands import HANG, peerbayes
from shared.peers_in_memory import DENSE, Peers, peers_of, refused_everywhere, simulated
from shared.scripted_loss import LosingPeers

PROJECT = Path(__file__).parents[2] / "examples" / "outside_package"
REGISTRIES = (FAMILIES, STRATEGIES, TOPOLOGIES, sources.SOURCES, REPORT_SECTIONS)
NAME = "peerbayes-centroid"


def written(folder, package, groups, version="0.1.0"):
    """Write the metadata of an installed package: what pip would write, without building anything."""
    metadata = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    sections = (
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
        for group, entries in groups.items()
    )
    (metadata / "entry_points.txt").write_text("\n".join(sections))


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of installed packages, of this test alone."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    for each in REGISTRIES:
        monkeypatch.setattr(each, "_loaded", {})
    estimators = dict(ESTIMATOR_OF)
    modules = set(sys.modules)
    yield folder
    ESTIMATOR_OF.clear()
    ESTIMATOR_OF.update(estimators)
    for name in set(sys.modules) - modules:
        if name.partition(".")[0] in ("peerbayes_centroid", "broken"):
            del sys.modules[name]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """The example as pip installs it: built from a copy, because building leaves files beside the source."""
    folder = tmp_path_factory.mktemp("outside")
    shutil.copytree(PROJECT, folder / "source")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-build-isolation",
        "--no-deps",
        "--no-index",
        "--quiet",
    ]
    target = ["--disable-pip-version-check", "--target", folder / "site", folder / "source"]
    done = subprocess.run([*command, *target], capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


@pytest.fixture
def installed(site, wheel):
    """A folder of packages into which pip installed the example."""
    shutil.copytree(wheel, site, dirs_exist_ok=True)
    importlib.invalidate_caches()
    return site


@pytest.fixture(scope="module")
def wine():
    return load_wine(return_X_y=True)


def test_importing_reads_no_entry_points():
    code = (
        "import importlib.metadata as metadata\n"
        "read = metadata.entry_points\n"
        "def counted(**settings):\n"
        "    assert not settings.get('group', '').startswith('peerbayes'), settings\n"
        "    return read(**settings)\n"
        "metadata.entry_points = counted\n"
        "import peerbayes, peerbayes.peer.agreement.terms, peerbayes.network, peerbayes.data.sources\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_entry_points_are_read_only_for_names_that_are_not_built_in(wine, monkeypatch):
    def refused(**_):
        raise AssertionError("entry points were read")

    monkeypatch.setattr(registry, "entry_points", refused)
    X, y = wine
    pb.simulate(X, y, family="qda", strategy="crc", topology="ring", peers=4, rows_per_peer=20, rounds=2)
    Terms("net", "y", family="tan", strategy="auto").load_packages()
    assert sources.outside("rows.csv") is sources.outside("sqlite:///rows.db") is None
    with pytest.raises(AssertionError, match="were read"):
        Terms("net", "y", family="forest")


def test_everything_of_a_package_is_found_by_name(installed, wine, tmp_path):
    X, y = wine
    run = pb.simulate(
        X, y, family="centroid", strategy="momentum", topology="wheel", peers=8, rows_per_peer=15, rounds=24
    )
    assert run.layout.name == "centroid" and run.configuration["strategy"] == "momentum"
    assert len(run.links) == 14  # a wheel of eight has seven spokes and a rim of seven
    assert run.summary()["test_error"] < 0.1
    changing = network.schedule("wheel", 8, np.random.default_rng(0), change_every=2)
    assert changing.at(1).nnz == changing.at(3).nnz == 28
    page = run.report(tmp_path / "report.html", sections=["rows-of-peers"]).read_text()
    assert "<h2>Rows of peers</h2>" in page and "Column distributions by class" in page
    assert "Rows of each peer" not in run.report(tmp_path / "plain.html").read_text()
    pd.DataFrame(X).assign(y=y).to_csv(tmp_path / "rows.csv", index=False)
    (tmp_path / "run.toml").write_text(
        f'[data]\nfile = "{tmp_path / "rows.csv"}"\n\n[simulation]\nfamily = "centroid"\nstrategy = "momentum"\n'
        'topology = "wheel"\npeers = 6\nrows_per_peer = 15\nrounds = 4\n'
    )
    peerbayes("simulate", tmp_path / "run.toml", "--out", tmp_path / "run", code=0)
    assert "centroid" in pb.Run.load(tmp_path / "run").layout.name
    peerbayes("report", tmp_path / "run", "--section", "rows-of-peers", code=0)
    assert "Rows of each peer" in (tmp_path / "run" / "report.html").read_text()


def test_a_family_of_a_package_gets_what_a_built_in_one_gets(installed, wine, tmp_path):
    X, y = wine
    estimator = ESTIMATOR_OF["centroid"]
    model, calibrated = estimator().fit(X, y), estimator(calibrate=True).fit(X, y)
    assert model.score(X, y) > 0.95 and calibrated.score(X, y) > 0.95
    for fitted in (model, calibrated):
        fitted.save(tmp_path / "model", overwrite=True)
        loaded = pb.load(tmp_path / "model")
        assert type(loaded) is type(fitted)
        np.testing.assert_array_equal(loaded.predict_proba(X), fitted.predict_proba(X))
    assert len(model.sample(5, random_state=0)[0]) == 5
    explained = model.explain(X[0])
    odds = model.predict_log_proba(X[:1])[0]
    best, second = np.sort(odds)[::-1][:2]
    assert explained["log_odds"].sum() == pytest.approx(best - second)
    assert {"mean", "deviation"} <= set(model.describe().columns)
    halves = [estimator().fit(X[rows::2], y[rows::2]).statistics_ for rows in (0, 1)]
    added = estimator.from_statistics(halves[0] + halves[1])
    np.testing.assert_allclose(
        added.statistics_.expressed(model.schema_).values.sum(), model.statistics_.values.sum()
    )
    np.testing.assert_allclose(
        estimator(schema=model.schema_).partial_fit(X, y, classes=[0, 1, 2]).predict_proba(X),
        model.predict_proba(X),
    )
    with pytest.raises(pb.SchemaError, match="centroid needs every continuous value, and some are missing"):
        estimator().fit(np.where(np.eye(*X.shape) == 1, np.nan, X), y)


def gaps_in(wine, column, value):
    """Rows with a discrete column, in which one value of five is missing in a column."""
    X, y = wine
    frame = pd.DataFrame(X[:, :4], columns=list("abcd")).assign(strong=np.where(X[:, 0] > 13, "yes", "no"))
    frame.loc[np.arange(len(y)) % 5 == 0, column] = value
    return frame, y


def test_a_family_of_a_package_takes_missing_values_or_refuses_with_a_sentence(installed, wine, tmp_path):
    refused = "centroid needs every continuous value, and some are missing"
    model = ESTIMATOR_OF["centroid"]().fit(*gaps_in(wine, "strong", "no"))
    terms = Terms("test", "label", family="centroid", packages=(NAME,), rounds=4)
    for column, value in (("strong", None), ("a", np.nan)):
        X, y = gaps_in(wine, column, value)
        parts = np.array_split(np.random.default_rng(0).permutation(len(y)), 3)
        (folder := tmp_path / column).mkdir()
        peers = Peers(folder, terms, nx.path_graph(3), [(X.iloc[part], y[part]) for part in parts])
        simulated = partial(pb.simulate, X, y, family="centroid", peers=4, rows_per_peer=20, rounds=2)
        if column == "strong":
            assert model.score(X, y) > 0.7 and simulated().summary()["test_error"] < 0.5
            assert all(isinstance(stats, np.ndarray) for stats in asyncio.run(peers.all()))
            continue
        for use in (simulated, partial(model.predict, X)):
            with pytest.raises(pb.SchemaError, match=refused):
                use()
        assert all(refused in sentence for sentence in refused_everywhere(peers, pb.SchemaError))


FAMILY = """
from dataclasses import dataclass
from peerbayes_centroid.family import Centroid
from peerbayes.model.families import Family
@dataclass(frozen=True, kw_only=True)
class Bare(Centroid):
    name = "bare"
    estimator = ""
    theta = Centroid.parameters
    parameters, contributions, sample = Family.parameters, Family.contributions, Family.sample
    transformed = Family.transformed
    def weights(self, stats):
        return Centroid(continuous=self.continuous, cardinalities=self.cardinalities).weights(stats)
"""


def test_what_a_family_leaves_out_is_refused_with_a_sentence(installed, wine, tmp_path):
    X, y = wine
    (installed / "broken.py").write_text(FAMILY)
    written(installed, "bare", {"peerbayes.families": {"bare": "broken:Bare"}})
    run = pb.simulate(X, y, family="bare", peers=4, rows_per_peer=20, rounds=2)
    model = run.classifier(0)
    assert "Class priors" not in run.report(tmp_path / "report.html").read_text()
    model.save(tmp_path / "model")
    pb.load(tmp_path / "model")
    with pytest.raises(NotSupported, match="bare has no contributions by column"):
        model.explain(X[0])
    with pytest.raises(NotSupported, match="bare has no readable parameters"):
        model.describe()
    first, second = (type(model)().fit(X[rows::2], y[rows::2]).statistics_ for rows in (0, 1))
    with pytest.raises(
        NotSupported, match="bare cannot be expressed in other units: agree on a schema first"
    ):
        first + second


@pytest.mark.parametrize(
    "settings",
    [
        {"message_loss": 0.1, "message_delay": 0.1, "peers_down": 0.1},
        {"secure_sum": True, "topology": "complete"},
        {"robust": "clip"},
        {"robust": "guard", "attack": "flip", "topology": "complete"},
        {"privacy": pb.Privacy(epsilon=8.0, min_rows=1)},
        {"start": "ml"},
        {"family": "centroid"},
        {"family": "tan"},
    ],
    ids=lambda settings: " ".join(map(str, settings)),
)
def test_a_strategy_of_a_package_runs_as_a_built_in_one(installed, wine, settings):
    settings = {"peers": 8, "rows_per_peer": 15, "rounds": 16, "evaluate_every": 0, **settings}
    run = pb.simulate(*wine, strategy="momentum", **settings)
    assert run.summary()["test_error"] < 0.3
    assert np.array_equal(run.stats, pb.simulate(*wine, strategy=STRATEGIES["momentum"](), **settings).stats)


FUNCTION = """
from peerbayes_centroid.strategy import Momentum
from peerbayes.learning.strategies import Declaration
class Slow(Momentum):
    name = "slow"
    declaration = Declaration(summed=False)
def slow():
    return Slow(0.9)
"""


def test_a_function_of_a_package_returns_a_strategy(installed, wine):
    """Its declaration is that of what it returns."""
    (installed / "broken.py").write_text(FUNCTION)
    written(installed, "slow", {"peerbayes.strategies": {"slow": "broken:slow"}})
    settings = {"peers": 8, "rows_per_peer": 15, "rounds": 8, "topology": "complete", "evaluate_every": 0}
    run = pb.simulate(*wine, strategy="slow", **settings)
    assert np.array_equal(
        run.stats, pb.simulate(*wine, strategy=sys.modules["broken"].Slow(0.9), **settings).stats
    )
    with pytest.raises(ValueError, match="slow"):
        pb.simulate(*wine, strategy="slow", secure_sum=True, **settings)
    with pytest.raises(ValueError, match="'slow'"):
        pb.simulate(*wine, strategy="slow", robust="clip", **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"secure_sum": True, "topology": "complete"},
        {"robust": "guard"},
        {"start": "ml", "strategy": "relay"},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_a_family_of_a_package_is_protected_as_a_built_in_one(installed, wine, settings):
    run = pb.simulate(
        *wine, family="centroid", peers=6, rows_per_peer=20, rounds=16, evaluate_every=0, **settings
    )
    assert run.summary()["test_error"] < 0.15


def test_a_file_of_a_package_that_is_missing_names_it(installed, wine, tmp_path, monkeypatch):
    X, y = wine
    run = pb.simulate(X, y, family="centroid", peers=4, rows_per_peer=20, rounds=2)
    run.save(tmp_path / "run")
    run.classifier(0).save(tmp_path / "model")
    content = run.statistics(0).to_bytes()
    monkeypatch.setattr(FAMILIES, "_loaded", {})
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder != str(installed)])
    for read in (
        lambda: pb.load(tmp_path / "model"),
        lambda: pb.Run.load(tmp_path / "run"),
        lambda: pb.Statistics.from_bytes(content),
    ):
        with pytest.raises(
            ExtensionError, match=f"'centroid', which the file says is of the package '{NAME}', is not"
        ):
            read()
    refused = peerbayes("report", tmp_path / "run", code=2)
    assert f"pip install {NAME}" in refused.stderr
    other = tmp_path / "other"
    written(other, "someone-else", {"peerbayes.families": {"centroid": "broken:Centroid"}})
    monkeypatch.syspath_prepend(str(other))
    with pytest.raises(
        ExtensionError, match=f"of the package someone-else here, but the file says that it is of '{NAME}'"
    ):
        pb.load(tmp_path / "model")
    assert "broken" not in sys.modules


def test_files_of_built_in_families_name_no_package(wine):
    header, _ = files.unpack(pb.MixedNB().fit(*wine).statistics_.to_bytes(), "the statistics")
    assert "package" not in header


@pytest.mark.parametrize(
    ("group", "name", "look_up"),
    [
        ("peerbayes.families", "centroid", lambda: FAMILIES["centroid"]),
        ("peerbayes.strategies", "momentum", lambda: STRATEGIES["momentum"]),
        ("peerbayes.topologies", "wheel", lambda: network.adjacency("wheel", 5, np.random.default_rng(0))),
        ("peerbayes.sources", "arff", lambda: sources.read("rows.arff")),
        ("peerbayes.report_sections", "rows-of-peers", lambda: REPORT_SECTIONS["rows-of-peers"]),
    ],
)
def test_two_packages_of_one_name_are_an_error(installed, group, name, look_up):
    written(installed, "someone-else", {group: {name: "broken:it"}})
    with pytest.raises(ExtensionError, match=f"'{name}' is brought by {NAME} and someone-else; expected one"):
        look_up()


@pytest.mark.parametrize(
    ("group", "name", "look_up"),
    [
        ("peerbayes.families", "qda", lambda: FAMILIES["centroid"]),
        ("peerbayes.families", "tan", lambda: FAMILIES["centroid"]),
        ("peerbayes.strategies", "exact", lambda: STRATEGIES["momentum"]),
        ("peerbayes.strategies", "relay", lambda: STRATEGIES["momentum"]),
        ("peerbayes.topologies", "ring", lambda: network.adjacency("wheel", 5, np.random.default_rng(0))),
        ("peerbayes.topologies", "tree+5", lambda: network.adjacency("wheel", 5, np.random.default_rng(0))),
        ("peerbayes.sources", "sqlite", lambda: sources.read("rows.arff")),
        ("peerbayes.sources", "csv", lambda: sources.read("rows.arff")),
    ],
)
def test_a_name_of_ours_stays_ours(installed, wine, group, name, look_up):
    written(installed, "someone-else", {group: {name: "broken:it"}})
    assert FAMILIES["qda"].__module__.startswith("peerbayes.") and STRATEGIES["exact"]().name == "exact"
    assert sources.outside("rows.csv") is sources.outside("sqlite:///rows.db") is None
    with pytest.raises(
        ExtensionError, match=r"package someone-else brings the .* a name that peerbayes uses itself"
    ):
        look_up()


STRATEGY = """
from peerbayes_centroid.strategy import Momentum
class it(Momentum):
    name = "bad"
    """


@pytest.mark.parametrize(
    ("group", "code", "says"),
    [
        ("peerbayes.families", "import no_such_module", "No module named 'no_such_module'"),
        ("peerbayes.families", "1 / 0", "ZeroDivisionError"),
        ("peerbayes.families", "it = dict", "expected a subclass of peerbayes.model.families.Family"),
        (
            "peerbayes.families",
            "from peerbayes_centroid.family import Centroid as it",
            "its name is 'centroid'",
        ),
        ("peerbayes.strategies", "it = 3", "expected a class, or a function that returns a strategy"),
        ("peerbayes.strategies", "it = dict", "it has no name, mixing"),
        (
            "peerbayes.strategies",
            "from peerbayes_centroid.strategy import Momentum as it",
            "its name is 'momentum'",
        ),
        (
            "peerbayes.strategies",
            STRATEGY + "mixing = 'mean'",
            "its mixing is 'mean'; expected one of neighbour",
        ),
        (
            "peerbayes.strategies",
            STRATEGY + "declaration = 'all'",
            "its declaration is 'all'; expected a Decl",
        ),
        (
            "peerbayes.strategies",
            STRATEGY + "from peerbayes.learning.strategies import Declaration\n"
            "    declaration = Declaration(over_tree=True)",
            "expected a Declaration whose over_tree is False",
        ),
        ("peerbayes.topologies", "it = 3", "it is 3; expected a function"),
        ("peerbayes.sources", "it = 3", "it is 3; expected a function"),
    ],
)
def test_a_broken_package_is_named(installed, wine, tmp_path, group, code, says):
    (installed / "broken.py").write_text(code)
    written(installed, "bad-one", {group: {"bad": "broken:it"}}, "2.0")
    (tmp_path / "rows.bad").write_text("")
    with pytest.raises(
        ExtensionError, match=r"'bad' of the package bad-one 2.0 \(broken:it\) cannot be used"
    ) as error:
        if group == "peerbayes.sources":
            sources.read(str(tmp_path / "rows.bad"))
        else:
            setting = {"peerbayes.families": "family", "peerbayes.strategies": "strategy"}.get(
                group, "topology"
            )
            pb.simulate(*wine, peers=4, rows_per_peer=20, rounds=2, **{setting: "bad"})
    assert says in str(error.value)


def test_errors_list_the_names_of_packages(installed, wine):
    for setting, name in (
        ("family", "kdb, auto, centroid"),
        ("strategy", "relay, tree-sum, auto, momentum"),
        ("topology", "wheel"),
    ):
        with pytest.raises(ValueError, match=f"{setting} is 'forest'; expected one of .*{name}"):
            pb.simulate(*wine, peers=4, rows_per_peer=20, **{setting: "forest"})
    with pytest.raises(SourceError, match=r"or arff://… or a \.arff file"):
        sources.read("rows.xlsx")
    with pytest.raises(TermsError, match=r"family is 'forest'; expected one of .*centroid$"):
        Terms("net", "y", family="forest")
    with pytest.raises(
        ExtensionError, match=r"no installed package brings the report section 'x'; .*rows-of-peers"
    ):
        REPORT_SECTIONS["x"]


def test_what_a_source_or_a_section_does_wrong_names_its_package(installed, wine, tmp_path):
    (tmp_path / "rows.arff").write_text(
        "@relation r\n@attribute x numeric\n@attribute y {a,b}\n@data\n1,a\n2,b\n"
    )
    table = sources.read(str(tmp_path / "rows.arff"))
    assert table.to_dict("list") == {"x": [1.0, 2.0], "y": ["a", "b"]}
    assert sources.read(f"arff://{tmp_path / 'rows.arff'}").equals(table)
    with pytest.raises(
        SourceError, match=f"source arff of the package {NAME} cannot read the rows: ValueError"
    ):
        sources.read(str(tmp_path / "rows.arff"), "SELECT 1")
    (installed / "broken.py").write_text("def it(run): return {'a': {'data': [{'x': object()}]}}")
    written(installed, "bad-one", {"peerbayes.report_sections": {"bad": "broken:it"}})
    run = pb.simulate(*wine, peers=4, rows_per_peer=20, rounds=2)
    with pytest.raises(ExtensionError, match="report section 'bad' of the package bad-one failed: TypeError"):
        run.report(tmp_path / "report.html", sections=["bad"])


# --- agreements: nothing is loaded that the terms do not name


def test_an_agreement_names_the_packages_that_it_needs(installed):
    settings = {"family": "centroid", "strategy": "momentum"}
    with pytest.raises(TermsError, match=rf'"?family is .centroid., which is of the package {NAME} here'):
        Terms("net", "y", **settings)
    with pytest.raises(
        TermsError, match=rf"of the package {NAME} here; expected it of other, which the agreement"
    ):
        Terms("net", "y", **settings, packages=("other",))
    assert packages_of(**settings) == (NAME, NAME)
    terms = Terms("net", "y", **settings, packages=("Peerbayes_Centroid",))
    assert terms.packages == (NAME,)
    assert Terms.parse(terms.to_toml(), "here") == terms and terms.digest != Terms("net", "y").digest
    assert "peerbayes_centroid" not in sys.modules  # reading an agreement imports nothing
    terms.load_packages()
    assert "peerbayes_centroid.family" in sys.modules


def test_nobody_promises_epsilon_for_a_family_of_a_package(installed, wine):
    with pytest.raises(
        TermsError, match=r"epsilon 4 with family 'centroid', which is not built in"
    ) as agreed:
        Terms("net", "y", family="centroid", packages=(NAME,), privacy=Privacy(epsilon=4.0))
    with pytest.raises(ValueError, match="nobody has checked") as simulated:
        pb.simulate(*wine, family="centroid", peers=6, rows_per_peer=20, privacy=pb.Privacy(min_rows=1))
    assert str(agreed.value) == str(simulated.value)
    assert "peerbayes_centroid" not in sys.modules


def test_an_agreement_without_packages_is_as_before():
    assert (
        Terms("net", "y", strategy="exact").digest
        == "dea4074b46357d818a2df06c76f2e4f095539999e654fe67ff748c2c53b2558c"
    )
    assert "packages" not in Terms("net", "y").to_toml()


def test_a_peer_without_the_package_is_told_which(installed, monkeypatch):
    text = Terms("net", "y", family="centroid", packages=(NAME,)).to_toml()
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder != str(installed)])
    with pytest.raises(
        TermsError, match=f"here, line .*family is 'centroid'; .* from the package {NAME}, which is not"
    ):
        Terms.parse(text, "here")


def test_the_command_line_writes_the_packages(installed, tmp_path):
    peerbayes(
        "network", "new", tmp_path / "net", "--name", "net", "--label", "y", "--family", "centroid", "--strategy",
        "momentum", code=0,
    )  # fmt: skip
    terms = Terms.read(tmp_path / "net" / "agreement.toml")
    assert (terms.family, terms.strategy, terms.packages) == ("centroid", "momentum", (NAME,))
    assert NAME in peerbayes("network", "inspect", tmp_path / "net", code=0).stdout


def joined(folder, family, package):
    """The folder of a peer that has joined a network of its own."""
    table = pd.DataFrame({"x": [0.0, 1.0, 3.0, 2.0], "y": list("abab")})
    terms = Terms("net", "y", family=family, packages=(package,))
    return Loopback.create(folder, terms, [table], []).homes["peer-1"]


def test_joining_imports_nothing(installed, tmp_path):
    home = joined(tmp_path, "centroid", NAME)
    assert "peerbayes_centroid" not in sys.modules
    home.load()
    assert "peerbayes_centroid.family" in sys.modules


def test_a_broken_package_stops_a_peer_before_it_begins(installed, tmp_path):
    (installed / "broken.py").write_text("1 / 0")
    written(installed, "bad-one", {"peerbayes.families": {"bad": "broken:it"}})
    home = joined(tmp_path, "bad", "bad-one")
    for command, code in (("check", 1), ("run", 2)):
        done = peerbayes("peer", command, home.folder, code=code)
        assert "the family 'bad' of the package bad-one" in " ".join((done.stdout + done.stderr).split())
    assert not home.state_path.exists()


LOUD = """
from peerbayes_centroid.strategy import Momentum
from peerbayes.learning.strategies import Declaration
class Loud(Momentum):
    name = "loud"
    declaration = Declaration(summed=False, exposes="loud tells; use another")
class Heavy(Momentum):
    name = "heavy"
    of_weights = True
"""


@pytest.fixture
def loud(installed):
    """A package whose strategies can be used with little."""
    (installed / "broken.py").write_text(LOUD)
    entries = {"loud": "broken:Loud", "heavy": "broken:Heavy"}
    written(installed, "loud", {"peerbayes.strategies": entries})


REFUSED = {
    "robust": ("loud", {"robust": Robust("clip")}, {"robust": "clip"}, "robust 'clip' with strategy 'loud'"),
    "secure sums": (
        "loud",
        {"privacy": Privacy(secure_sum=True)},
        {"secure_sum": True},
        "secure_sum with strategy 'loud', which needs single messages",
    ),
    "epsilon": (
        "loud",
        {"privacy": Privacy(epsilon=4.0)},
        {"privacy": pb.Privacy(epsilon=4.0, min_rows=1)},
        "epsilon 4 with strategy 'loud', which sends what noise cannot protect: loud tells; use another",
    ),
    "weights": (
        "heavy",
        {"privacy": Privacy(epsilon=4.0)},
        {"privacy": pb.Privacy(epsilon=4.0, min_rows=1)},
        "epsilon 4 with strategy 'heavy', which sends what noise cannot protect: it learns weights",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_strategy_of_a_package_does_not_allow_is_refused_by_every_member(loud, wine, case, tmp_path):
    """When its package is loaded, in the simulator's words, before a peer has as much as a state."""
    strategy, settings, simulated, says = REFUSED[case]
    with pytest.raises(ValueError, match=re.escape(says)) as said:
        pb.simulate(*wine, strategy=strategy, peers=4, rows_per_peer=20, topology="complete", **simulated)
    table = pd.DataFrame({"x": [0.0, 1.0, 3.0, 2.0], "y": list("abab")})
    if settings.get("privacy", Privacy()).epsilon is not None:
        settings = settings | {
            "features": {"x": "continuous"}, "facts": {"x": Facts(1.5, 1.0)}, "classes": ("a", "b"),
        }  # fmt: skip
    STRATEGIES._loaded.clear()
    terms = Terms("net", "y", strategy=strategy, packages=("loud",), **settings)
    (tmp_path / "agreement.toml").write_text(terms.to_toml())
    everybody = list(itertools.combinations(range(4), 2))
    peers = Loopback.create(tmp_path / "net", terms, [table] * 4, everybody)
    for home in list(peers.homes.values())[:2]:
        STRATEGIES._loaded.clear()  # a process of its own
        refused = peerbayes("peer", "run", home.folder, code=2).stderr
        assert f"{home.agreement_path}: {said.value}" in " ".join(refused.split())
        assert not home.state_path.exists()
    STRATEGIES._loaded.clear()
    founded = peerbayes(
        "network", "new", tmp_path / "new", "--terms", tmp_path / "agreement.toml", code=2
    )  # the founder is told before anybody is invited
    assert str(said.value) in " ".join(founded.stderr.split()) and not (tmp_path / "new").exists()


# --- real peers


def dealt(wine, count):
    """Rows, labels and the rows of each peer."""
    X, y = wine
    rows = np.random.default_rng(0).permutation(len(y))
    return (
        pd.DataFrame(X).add_prefix("column"),
        np.array([f"g{label}" for label in y]),
        np.array_split(rows, count),
    )


@pytest.mark.parametrize(
    ("settings", "simulation", "near"),
    [
        ({}, {}, 1e-9),
        ({"privacy": Privacy(secure_sum=True)}, {"secure_sum": True}, 1e-6),
        ({"robust": Robust("clip")}, {"robust": "clip"}, None),
        ({"robust": Robust("clip", guard=True)}, {"robust": "guard"}, None),
    ],
    ids=["plain", "secure sums", "clip", "guard"],
)
def test_real_peers_run_a_family_and_a_strategy_of_a_package(
    installed, wine, tmp_path, settings, simulation, near
):
    terms = Terms(
        "test", "label", family="centroid", strategy="momentum", packages=(NAME,), rounds=8, **settings
    )
    shared, graph = dealt(wine, 4), nx.complete_graph(4)
    reached = np.stack(asyncio.run(peers_of(tmp_path, terms, graph, shared).all()))
    run = simulated(shared, graph, terms, **simulation)
    if near is not None:  # where members may lie, units are agreed on by vote
        assert np.abs(reached - run.stats).max() <= near
    for name in ("p0", "p3"):
        assert pb.load(tmp_path / name / "model.peerbayes").score(*shared[:2]) > 0.9


def test_real_peers_run_a_strategy_of_a_package_under_loss(installed, wine, tmp_path, monkeypatch):
    monkeypatch.setattr("peerbayes.peer.tasks.WAIT", 0.2)  # a lost reply is asked for again soon
    patient = Limits(deadline=3600.0, quorum=0.01)
    terms = Terms("test", "label", strategy="momentum", packages=(NAME,), rounds=8, limits=patient)
    X, y, parts = shared = dealt(wine, 5)
    links = network.adjacency(DENSE, 5, np.random.default_rng(0))
    trace = network.LossTrace.drawn(links, 8, 0.2, np.random.default_rng(7), False, patient.quorum)
    assert len(trace) >= 2
    peers = LosingPeers(tmp_path, terms, DENSE, [(X.iloc[part], y[part]) for part in parts], trace)
    reached = np.stack(asyncio.run(peers.all()))
    assert np.abs(reached - simulated(shared, DENSE, terms, message_loss=trace).stats).max() <= 1e-8


def test_private_peers_run_a_strategy_of_a_package(installed, tmp_path):
    """It sees the rows through noise alone; families are not taken, because nobody has checked them."""
    terms = private_agreements.terms(strategy="momentum", packages=(NAME,))
    X, y = private_agreements.X, private_agreements.Y
    parts = np.array_split(np.random.default_rng(0).permutation(450), 5)
    peers = peers_of(tmp_path, terms, nx.cycle_graph(5), (X, y, parts))
    assert all(isinstance(stats, np.ndarray) for stats in asyncio.run(peers.all()))
    assert peers.nodes["p0"].session.agreed.private.spent == pytest.approx(4.0, rel=1e-3)


def as_arff(table, path):
    """Write a table with numbers and a label of text."""
    *features, label = table.columns
    head = [f"@attribute {name} numeric" for name in features]
    values = ",".join(sorted(set(table[label])))
    lines = ["@relation rows", *head, f"@attribute {label} {{{values}}}", "@data"]
    path.write_text(
        "\n".join([*lines, *(",".join(map(str, row)) for row in table.itertuples(index=False))]) + "\n"
    )


@pytest.mark.long
def test_real_peers_of_the_command_line_run_a_package_and_equal_the_simulator(
    installed, wine, tmp_path, monkeypatch
):
    X, y = wine
    names = [f"x{column}" for column in range(X.shape[1])]
    rows = np.random.default_rng(0).permutation(len(y))[:120]
    partition, links = np.array_split(rows, 3), [(0, 1), (1, 2)]
    frame = pd.DataFrame(X, columns=names).assign(grape=[f"g{label}" for label in y])
    tables = [frame.iloc[part] for part in partition]
    terms = Terms("net", "grape", family="centroid", strategy="momentum", packages=(NAME,), rounds=12)
    peers = Loopback.create(tmp_path / "peers", terms, tables, links)
    for home, table in zip(peers.homes.values(), tables, strict=True):
        as_arff(table, home.folder / "rows.arff")
        (home.folder / "rows.csv").unlink()
        text = home.settings_path.read_text()
        home.settings_path.write_text(text.replace('"rows.csv"', '"rows.arff"'))
    paths = [str(installed), str(Path(pb.__file__).parents[1])]
    monkeypatch.setenv("PYTHONPATH", ":".join(paths))
    try:
        for name in peers.homes:
            peers.start(name)
        peers.wait()
    finally:
        peers.stop()
    matrix = np.zeros((3, 3))
    for first, second in links:
        matrix[first, second] = matrix[second, first] = 1
    run = pb.simulate(
        frame[names], frame["grape"].to_numpy(), family="centroid", strategy="momentum", peers=3, partition=partition,
        topology=matrix, rounds=12, evaluate_every=0,
    )  # fmt: skip
    for peer, home in enumerate(peers.homes.values()):
        model = pb.load(home.model_path)
        assert type(model).__name__ == "CentroidClassifier"
        difference = model.statistics_.expressed(run.schema).values - run.statistics(peer).values
        assert np.abs(difference).max() < 1e-9
    broken = peers.homes["peer-1"]
    monkeypatch.setattr(FAMILIES, "_loaded", {})
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder != str(installed)])
    assert f"package {NAME}, which is not installed" in peerbayes("peer", "run", broken.folder, code=2).stderr
