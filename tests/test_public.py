"""What users may rely on, and how the tree is built."""

import ast
import subprocess
import sys
from pathlib import Path

import peerbayes

SOURCE = Path(peerbayes.__file__).parent

# Imports go downwards only: a module may import those before it.
LAYERS = [
    "errors", "text", "arguments", "toml", "machine", "versions", "core", "families.base", "families.naive_bayes",
    "families.gaussian", "families.structures", "families.lines", "families.bayes_net", "families",
    "kernels", "vectors", "fused", "fused_lines", "fused_gpu", "scans", "tables", "columns", "inference", "schema",
    "completion.by_enumeration", "completion.by_messages", "completion.known", "completion.places", "completion.rows",
    "completion.alone", "completion.terms", "completion",
    "passes.sizes", "passes.lookup", "passes.blocks", "passes.checks", "passes.shortcuts", "passes.features",
    "passes.logits", "passes.evaluation", "passes.sums", "passes.passing", "passes.held", "passes.plain",
    "passes.streamed", "passes.forms", "passes.predictions", "passes",
    "expectation", "dependence", "layouts", "files", "statistics", "priors",
    "calibration", "settings", "knowledge", "model", "training", "parts", "decisions", "progress", "reading",
    "predictor", "classifier", "estimators",
    "sources.errors", "sources.values", "sources.text", "sources.parquet", "sources.databases", "sources",
    "telling", "answers",
    "topologies.links", "topologies.networks", "topologies.schedules", "topologies.mixing", "topologies.reach",
    "topologies", "partitions", "places", "strategies", "relay", "secure_sums", "invariants", "combining", "guard",
    "medians", "moments", "false_reports", "attacks", "holdings", "member_bounds", "adaptive", "defence", "rounds",
    "metrics", "gossip", "runs",
    "privacy", "privacy.terms", "privacy.accounting", "privacy.coordinates", "privacy.projection", "privacy.sampling",
    "privacy.mechanism", "privacy.row_steps",
    "privacy.units", "privacy.edges", "privacy.scheme", "privacy.plan", "privacy.simulated",
    "views", "live", "checkpoints", "inputs", "grids", "structure", "simulation",
    "simulation.clock", "simulation.checks", "simulation.asked", "simulation.drawn", "simulation.liars",
    "simulation.reports", "simulation.population",
    "simulation.starts", "simulation.drivers", "simulation.judging", "simulation.course", "simulation.references",
    "simulate",
    "audit.measured", "audit.judgement", "audit.matching", "audit.labelling", "audit.listening", "audit.lying",
    "audit.observing", "audit.belonging", "audit.reconstruction",
    "shards.cut", "shards.shard", "shards.engines", "shards.driver", "shards",
    "report.errors", "report.arrays", "report.labels", "report.theme", "report.layout", "report.plotlyjs",
    "report.curves", "report.network", "report.lanes", "report.structure", "report.model", "report.densities",
    "report.judged", "report.compare", "report.captions", "report.tables", "report.figures", "report.page",
    "report.papers", "report",
    "datasets.errors", "datasets.expected", "datasets.origins", "datasets.registry", "datasets.downloads",
    "datasets.cache", "datasets.formats", "datasets.tabular", "datasets.images", "datasets.bundled",
    "datasets.catalogue", "datasets.sources", "datasets",
    "experiments", "experiments.paper", "experiments.prepared", "experiments.cells", "experiments.store",
    "experiments.ray_engine", "experiments.engines",
    "experiments.tables", "experiments.printed", "experiments.sweep", "experiments.formats",
    "experiments.agreement", "experiments.document",
    "peers", "peers.errors", "peers.room", "peers.ports", "peers.verdict", "peers.finding",
    "peers.documents", "peers.hold_out",
    "peers.facts", "peers.terms", "peers.demands", "peers.pem",
    "peers.identity", "peers.member", "peers.roster", "peers.objections", "peers.groups", "peers.masks",
    "peers.mask_keys",
    "peers.edge_noise", "peers.invitation", "peers.settings", "peers.home", "peers.exact_figures", "peers.lock",
    "peers.warnings", "peers.founder", "peers.inspection",
    "peers.wire", "peers.witnesses", "peers.summary", "peers.learner", "peers.masked", "peers.pooling",
    "peers.tree", "peers.medians", "peers.reports", "peers.own_table", "peers.structures", "peers.releases",
    "peers.agreement",
    "peers.private",
    "peers.audit", "peers.store", "peers.continuity", "peers.ledger", "peers.spending",
    "peers.tls", "peers.descriptors", "peers.supervision", "peers.person", "peers.rates", "peers.proofs", "peers.calls",
    "peers.transport", "peers.news", "peers.sums", "peers.judge", "peers.ending", "peers.patience",
    "peers.standing", "peers.processes", "peers.inbox",
    "peers.outbox", "peers.parted", "peers.evidence", "peers.agreeing", "peers.taking", "peers.asking",
    "peers.callbacks", "peers.answering", "peers.model_file", "peers.rounds", "peers.node", "peers.handshakes",
    "peers.journal",
    "peers.exposing",
    "peers.status", "peers.service",
    "peers.reaching", "peers.checks", "peers.farewell", "peers.prometheus", "peers.loopback",
    "audit.trials", "audit.folders", "audit",
    "web", "web.errors", "web.address", "web.access", "web.guard", "web.files", "web.seen", "web.run", "web.sent",
    "web.peer", "web.folder", "web.peer_figures", "web.messages", "web.feed", "web.app", "web.serve", "web.launch",
    "__init__", "config", "commands", "commands.shared", "commands.report",
    "commands.watch", "commands.audit", "commands.simulation", "commands.demonstration", "commands.datasets",
    "commands.reproduce",
    "commands.model", "commands.network_report", "commands.network", "commands.node_files", "commands.node",
    "commands.privacy", "cli", "__main__",
]  # fmt: skip


def test_public_names_are_pinned():
    assert sorted(peerbayes.__all__) == [
        "Attack", "BayesNetClassifier", "Column", "ConfigurationError", "FalseReport", "KDB", "LDA", "MixedNB",
        "ModelFileDamaged", "ModelFileError", "ModelFileTooNew",
        "PartitionError", "PeerbayesError", "Privacy", "QDA", "Run", "Schema", "SchemaError", "SchemaMismatch",
        "Statistics", "StatisticsMismatch", "StructureError", "TAN", "TopologyError", "load", "plan", "prior_knowledge",
        "simulate",
    ]  # fmt: skip
    assert all(hasattr(peerbayes, name) for name in peerbayes.__all__)


def test_imports_go_downwards_only():
    modules = {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
        for path in SOURCE.rglob("*.py")
    }
    assert sorted(modules) == sorted(LAYERS), "a new module needs its place in LAYERS"
    for name, path in modules.items():
        for imported in imports(path):
            if imported in LAYERS:
                assert LAYERS.index(imported) < LAYERS.index(name), f"{name} imports {imported}"


def imports(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("peerbayes"):
            inside = node.module.removeprefix("peerbayes").removeprefix(".")
            if inside:
                yield inside
            else:
                yield from (alias.name for alias in node.names if alias.name != "__version__")


def loaded_by(statement):
    code = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_is_light():
    """Heavy parts wait until they are needed; scikit-learn itself may load pandas."""
    own = loaded_by("import peerbayes") - loaded_by("import sklearn.base")
    assert not own & {"numba", "pandas", "torch", "ray", "plotly", "starlette", "grpc"}


def test_small_tables_never_wait_for_the_compiler():
    assert "numba" not in loaded_by(
        "import peerbayes as pb; from sklearn.datasets import load_wine; X, y = load_wine(return_X_y=True); "
        "pb.MixedNB(calibrate=True).fit(X, y).predict(X)"
    )


def test_nothing_is_unpickled():
    for path in SOURCE.rglob("*.py"):
        names = {
            alias.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        assert not names & {"pickle", "joblib", "dill", "cloudpickle", "marshal", "shelve"}, path
