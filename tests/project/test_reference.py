"""Nothing public is without a text: names, arguments, commands, options, settings, variables, equations; the site."""

import inspect
import os
import re
import subprocess
import sys
import zlib
from dataclasses import fields
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

import pytest

import peerbayes as pb
from peerbayes.peer.runs.consent import Consent
from peerbayes.peer.runs.timetable import Schedule
from peerbayes.simulation import config

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
sys.path.insert(0, str(ROOT / "tools"))

import docstrings  # noqa: E402
import reference  # noqa: E402

# Modules that users extend or call: whatever they define without an underscore is public.
MODULES = (
    "model.core", "model.calibration", "model.families.base", "model.families.naive_bayes", "model.families.gaussian",
    "learning.strategies", "learning.relay", "learning.planning", "learning.metrics", "network.topologies",
    "network.schedules", "network.fault_kinds", "network.losses",
    "network.mixing", "simulation.partitions", "privacy.accounting", "privacy.mechanism", "privacy.noise",
    "privacy.scheme", "privacy.exposure", "simulation.sharded.driver",
    "data.datasets", "data.sources", "data.sources.values", "errors", "report",
    "callbacks", "simulation.events",
    "audit.observation", "audit.reconstruction", "audit.membership_inference",
)  # fmt: skip

# Methods that scikit-learn documents.
SKLEARN = {"get_params", "set_params", "score", "get_metadata_routing", "set_fit_request", "set_partial_fit_request",
           "set_score_request"}  # fmt: skip


def module_of(name):
    try:
        return import_module(f"peerbayes.{name}")
    except ImportError as missing:
        pytest.skip(f"{missing.name} is not installed")


def public_members(cls):
    """Methods and properties that the class or its bases in peerbayes define."""
    for name, member in inspect.getmembers(cls):
        plain = member.fget if isinstance(member, property) else getattr(member, "func", member)
        ours = getattr(inspect.unwrap(plain) if callable(plain) else plain, "__module__", "") or ""
        if not name.startswith("_") and name not in SKLEARN and ours.startswith("peerbayes"):
            yield name, member


def arguments_of(function):
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]


# --- names -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", pb.__all__)
def test_a_public_name_and_its_members_say_what_they_are(name):
    found = getattr(pb, name)
    assert inspect.getdoc(found)
    if not inspect.isclass(found):
        return
    for member, value in public_members(found):
        assert inspect.getdoc(value), f"{name}.{member} has no docstring"


def mentions(text, argument):
    return re.search(rf"(?<![\w]){re.escape(argument)}(?![\w])", text) is not None


@pytest.mark.parametrize("name", pb.__all__)
def test_every_argument_of_a_public_name_is_explained(name):
    found = getattr(pb, name)
    if inspect.isclass(found) and issubclass(found, Exception):
        return
    texts = {name: (found, inspect.getdoc(found) or "")}
    if inspect.isclass(found):
        texts |= {
            f"{name}.{member}": (value, inspect.getdoc(value) or "")
            for member, value in public_members(found)
            if callable(value) and not inspect.isclass(value)
        }
        whole = inspect.getdoc(found) or ""
        whole += "\n".join(
            base.__doc__ or "" for base in (pb.MixedNB, pb.QDA) if issubclass(found, base.__mro__[1])
        )
        if hasattr(found, "__dataclass_fields__"):
            whole += "\n".join(f"{key} {text}" for key, text in reference.field_texts(found).items())
        texts[name] = (found, whole)
    for where, (value, text) in texts.items():
        for argument in arguments_of(value):
            assert mentions(text, argument), f"{where} does not say what {argument} is"


@pytest.mark.parametrize("name", MODULES)
def test_what_a_module_defines_says_what_it_is(name):
    module = module_of(name)
    assert module.__doc__
    for word, value in vars(module).items():
        if word.startswith("_") or getattr(value, "__module__", "") != module.__name__:
            continue
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, f"{name}.{word} has no docstring"


# --- commands and settings ---------------------------------------------------------------------------------


COMMANDS = dict(reference.commands())


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_and_its_options_say_what_they_do(name):
    command = COMMANDS[name]
    assert command.help
    for parameter in command.params:
        assert parameter.help, f"{name}: {parameter.opts}"


def test_the_reference_has_every_command_and_option():
    told = reference.command_tables()
    for name, command in COMMANDS.items():
        if name == "peerbayes":
            continue
        section = told.partition(f"# {name}\n")[2].partition("\n#")[0]
        assert section, name
        for parameter in command.params:
            if not getattr(parameter, "hidden", False):
                assert parameter.help.split("\n")[0].replace("|", "\\|") in section, (name, parameter.opts)


def test_every_argument_of_simulate_is_explained_in_its_own_line():
    told = docstrings.arguments(inspect.getdoc(pb.simulate))
    assert list(told) == arguments_of(pb.simulate)


def test_every_setting_of_a_file_is_explained():
    told = docstrings.arguments(inspect.getdoc(pb.simulate))
    for name, setting in config.SETTINGS.items():
        assert told[name] == setting.text and f"| `{name}` |" in reference.simulation_table()
    for name, setting in reference.declarations(config.Data).items():
        assert setting.help and f"| `{name}` |" in reference.data_table()


@pytest.mark.parametrize(
    ("cls", "table"),
    [
        (reference.terms.Terms, reference.terms_table),
        (reference.terms.Limits, reference.limits_table),
        (reference.terms.Privacy, reference.privacy_table),
        (reference.terms.Robust, reference.robust_table),
        (reference.column_facts.Facts, reference.facts_table),
        (reference.peer_settings.Settings, reference.peer_table),
    ],
)
def test_every_field_of_a_file_is_explained(cls, table):
    told = reference.field_texts(cls)
    for field in fields(cls):
        assert told.get(field.name), f"{cls.__name__}.{field.name} has no text"
        assert field.name in reference.SECTIONED or f"| `{field.name}` |" in table()


def test_the_pages_hold_every_table():
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    marks = {mark for text in texts for mark in re.findall(r"<!-- reference: ([\w-]+) -->", text)}
    assert marks == set(reference.SECTIONS)


def test_settings_shown_on_the_page_are_settings(tmp_path):
    page = (DOCS / "reference" / "settings.md").read_text(encoding="utf-8")
    run, agreement, described, peer, allowed, planned = re.findall(
        r"```toml\n(.*?)```", page, flags=re.DOTALL
    )
    for name, text, kind in (("consent", allowed, Consent), ("schedule", planned, Schedule)):
        (tmp_path / f"{name}.toml").write_text(text, encoding="utf-8")
        assert kind.read(tmp_path / f"{name}.toml") is not None
    private = 'network = "n"\nlabel = "y"\n' + described + "[privacy]\nepsilon = 4.0\n"
    assert len(reference.terms.Terms.parse(private, "the page").facts) == 3
    (terms,) = [reference.terms.Terms.parse(agreement, "the page")]
    assert terms.features and terms.limits.rows == 100
    assert all(
        name in {**reference.peer_settings.Settings.__dataclass_fields__, **reference.peer_settings.DEMANDS}
        for name in re.findall(r"^(\w+) =", peer, re.M)
    )
    assert all(
        name in {*config.SETTINGS, *reference.declarations(config.Data)}
        for name in re.findall(r"^(\w+) =", run, re.M)
    )


def test_every_variable_is_on_the_page():
    page = (DOCS / "reference" / "environment.md").read_text(encoding="utf-8")
    files = [
        path
        for folder in ("src", "tests", "benchmarks", "examples")
        for path in (ROOT / folder).rglob("*.py")
    ]
    found = {
        name for path in (*files, ROOT / ".ci" / "run")
        for name in re.findall(r"\bPEERBAYES_[A-Z]+\b", path.read_text(encoding="utf-8"))
    }  # fmt: skip
    assert {"PEERBAYES_DATA", "PEERBAYES_CACHE"} <= found
    for name in found:
        assert f"`{name}`" in page, name


# --- equations -----------------------------------------------------------------------------------------------


CONCEPTS = (DOCS / "concepts.md").read_text(encoding="utf-8")


def named(path):
    """What a dotted name stands for: the longest part that is a module, and attributes of it."""
    words = path.split(".")
    for count in range(len(words), 0, -1):
        try:
            found = import_module(".".join(words[:count]))
        except ModuleNotFoundError as error:
            if error.name and not error.name.startswith("peerbayes"):
                pytest.skip(f"{error.name} is not installed")
            continue
        for word in words[count:]:
            found = getattr(found, word)
        return found
    raise AssertionError(path)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`(peerbayes(?:\.\w+)+)`", CONCEPTS))))
def test_a_function_of_an_equation_exists(path):
    assert named(path) is not None


def test_every_equation_of_the_paper_has_its_function():
    rows = re.findall(r"^\| (.*?) \| .*? \| (.*) \|$", CONCEPTS, flags=re.MULTILINE)
    told = dict(rows)
    numbers = {number for cell in told for number in re.findall(r"\((\d+)\)", cell)}
    spans = [(int(a), int(b)) for cell in told for a, b in re.findall(r"\((\d+)\) to \((\d+)\)", cell)]
    numbers |= {str(number) for first, last in spans for number in range(first, last + 1)}
    assert numbers == {str(number) for number in range(1, 12)}
    for algorithm in ("Algorithm 1", "Algorithm 2, line 8", "Algorithm 3", "Theorem 1"):
        assert "`peerbayes." in told[algorithm]


# --- the site --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for part in ("mkdocs", "material", "mkdocstrings", "griffe"):
        if find_spec(part) is None:
            pytest.skip("the site needs the extra docs")
    target = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr and "ERROR" not in done.stderr, done.stderr
    return target


class Page(HTMLParser):
    """The anchors of a page, where it links to, and what a browser would request for it."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.links, self.requests = set(), [], []
        self.policy = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.anchors |= {given[key] for key in ("id", "name") if given.get(key)}
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        elif tag == "meta" and given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"]
        elif tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.requests.append(given.get("href", ""))
        self.requests += [given[key] for key in ("src", "data", "srcset", "poster") if given.get(key)]


@pytest.fixture(scope="module")
def html(site):
    return {
        path: Page(path.read_text(encoding="utf-8"))
        for path in site.rglob("*.html")
        if path.name != "404.html"
    }


@pytest.mark.long
def test_every_public_name_is_on_the_site(site):
    raw = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    known = {line.split(" ")[0] for line in zlib.decompress(raw).decode().splitlines()}
    for name in pb.__all__:
        found = getattr(pb, name)
        assert f"{found.__module__}.{name}" in known, name
        for member, _ in (
            public_members(found)
            if inspect.isclass(found)
            and name not in ("QDA", "LDA", "TAN", "KDB", "BayesNetClassifier", "AODE", "GA2M", "AutoBayes")
            else ()
        ):
            assert f"{found.__module__}.{name}.{member}" in known, f"{name}.{member}"
    for module in MODULES:
        if find_spec(f"peerbayes.{module}") is None:
            continue
        for word, value in vars(module_of(module)).items():
            ours = getattr(value, "__module__", "") == f"peerbayes.{module}"
            if ours and not word.startswith("_") and (inspect.isclass(value) or inspect.isfunction(value)):
                assert f"peerbayes.{module}.{word}" in known, f"{module}.{word}"


@pytest.mark.long
def test_the_generated_tables_are_on_the_site(site):
    commands = (site / "reference" / "commands" / "index.html").read_text(encoding="utf-8")
    assert 'id="peerbayes-peer-run"' in commands and "<!-- reference" not in commands
    settings = (site / "reference" / "settings" / "index.html").read_text(encoding="utf-8")
    assert all(f"<code>{name}</code>" in settings for name in (*config.SETTINGS, "quorum", "listen"))


@pytest.mark.long
def test_links_and_anchors_of_the_site_resolve(site, html):
    for path, page in html.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = there / "index.html" if there.is_dir() else there
            assert there.exists(), f"{path.relative_to(site)}: {link}"
            if parts.fragment and there.suffix == ".html" and parts.fragment != "__skip":
                found = html[there].anchors
                assert unquote(parts.fragment) in found, f"{path.relative_to(site)}: {link}"


@pytest.mark.long
def test_the_site_requests_nothing_from_other_hosts(site, html):
    for path, page in html.items():
        assert page.policy.startswith("default-src 'self';"), path
        assert "http" not in page.policy
        for request in page.requests:
            assert not urlsplit(request).netloc, f"{path.relative_to(site)}: {request}"
    for sheet in site.rglob("*.css"):
        for target in re.findall(
            r"(?:url\(|@import\s+)[\"']?([^\"')\s]+)", sheet.read_text(encoding="utf-8")
        ):
            assert not re.match(r"(https?:)?//", target), f"{sheet.name}: {target}"


@pytest.mark.long
def test_the_site_works_in_a_browser(site, open_page):
    """Without a complaint about its policy, and with its search."""
    handler = partial(Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            page = open_page(f"http://127.0.0.1:{server.server_port}/")
            page.get_by_role("link", name="Concepts and equations").first.click()
            page.get_by_role("link", name="peerbayes.model.core.residual").first.click()
            page.wait_for_url("**/reference/api/core/#peerbayes.model.core.residual")
            page.locator("[data-md-component=search-query]").first.fill("quorum")
            page.get_by_role("link", name=re.compile("Settings files|limits")).first.wait_for()
        finally:
            server.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and keeps no log."""

    def log_message(self, *_):
        pass
