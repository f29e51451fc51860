"""The agreement: written, read back, refused by line, compared."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peerbayes.data.kinds import KINDS
from peerbayes.errors import TermsError
from peerbayes.learning import planning
from peerbayes.model.families import FAMILIES
from peerbayes.model.layout import STRUCTURES
from peerbayes.peer.agreement.column_facts import Facts
from peerbayes.peer.agreement.terms import Limits, Privacy, Robust, Terms
from peerbayes.peer.state.peer_settings import refuse_weaker

columns = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12)
positive = st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False)
whole = st.integers(1, 2**31 - 1)


@st.composite
def agreements(draw):
    label = draw(columns)
    limits = Limits(
        draw(positive),
        draw(st.floats(0, 1, exclude_min=True)),
        draw(st.integers(1024, 2**31 - 1)),
        draw(whole),
    )
    strategy, start = (
        draw(st.sampled_from(planning.names())),
        draw(st.sampled_from(["uniform", "marginal", "ml"])),
    )
    families = (
        list(FAMILIES) if not planning.of_weights(strategy) else [n for n in FAMILIES if FAMILIES[n].linear]
    )
    family = draw(st.sampled_from(families))
    summed = planning.declaration_of(strategy).summed and start == "uniform" and family not in STRUCTURES
    return Terms(
        network=draw(st.from_regex(r"[A-Za-z0-9-]{1,40}", fullmatch=True)),
        label=label,
        features=draw(
            st.dictionaries(columns.filter(lambda name: name != label), st.sampled_from(("auto", *KINDS)))
        ),
        family=family,
        strategy=strategy,
        start=start,
        rounds=draw(whole),
        lr=draw(st.floats(2**-52, 2)),
        local_steps=draw(whole),
        clip=draw(st.none() | positive),
        limits=limits,
        privacy=Privacy(summed and draw(st.booleans())),
    )


@given(agreements())
def test_what_is_written_is_read_back(terms):
    read = Terms.parse(terms.to_toml(), "agreement.toml")
    assert read == terms and read.digest == terms.digest and hash(read) == hash(terms)
    assert list(read.features) == list(terms.features)
    assert terms.differences(read) == []


@given(agreements(), agreements())
def test_digests_and_differences_tell_terms_apart(one, other):
    assert (one.digest == other.digest) == (one == other) == (not one.differences(other))
    assert len(one.differences(other)) == len(other.differences(one))


def test_numbers_and_order_have_one_form():
    one = Terms("n", "y", {"a": "auto", "b": "discrete"}, lr=1, clip=5)
    other = Terms("n", "y", {"b": "discrete", "a": "auto"}, lr=1.0, clip=5.0)
    assert one == other and one.digest == other.digest and list(one.features) == list(other.features)


def test_only_network_and_label_must_be_given():
    assert Terms.parse('network = "n"\nlabel = "y"', "here") == Terms("n", "y")
    assert Terms.parse('network = "n"\nlabel = "y"\nclip = false', "here").clip is None


def test_differences_read_well():
    one = Terms("n", "y", {"age": "continuous"}, rounds=64, clip=None)
    other = Terms("n", "y", {"age": "discrete", "sex": "auto"}, rounds=32, limits=Limits(deadline=5))
    assert sorted(one.differences(other)) == [
        "clip: none against 5.0",
        "features.age: continuous against discrete",
        "features.sex: absent against auto",
        "limits.deadline: 60.0 against 5.0",
        "rounds: 64 against 32",
    ]
    assert "features: those that are named against every column but the label" in one.differences(
        Terms("n", "y")
    )


GOOD = """\
network = "hospitals"
label = "outcome"
rounds = 64

[features]
"age [years]" = "continuous"
rounds = "discrete"

[limits]
deadline = 60
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("rounds = 64", "rounds = 0", 3, "rounds is 0; expected a whole number"),
        ("rounds = 64", "rounds = true", 3, "rounds is True"),
        ("rounds = 64", "rounds = 2.5", 3, "rounds is 2.5"),
        ("rounds = 64", "round = 64", 3, "'round' is no setting of an agreement; expected one of network"),
        ("rounds = 64", "lr = nan", 3, "expected a positive number"),
        ("rounds = 64", "lr = inf", 3, "expected a positive number"),
        ("rounds = 64", f"lr = 1{'0' * 400}", 3, "expected a positive number"),
        ("rounds = 64", "clip = true", 3, "false for no clipping"),
        ("rounds = 64", "clip = -1", 3, "clip is -1"),
        ("rounds = 64", 'family = "forest"', 3, "expected one of naive-bayes"),
        ("rounds = 64", 'strategy = "fedavg"', 3, "relay, tree-sum, auto"),
        ("rounds = 64", 'start = "zero"', 3, "expected one of uniform, marginal, ml"),
        ('"hospitals"', '"the hospitals"', 1, "expected 1 to 40 letters"),
        ('"outcome"', '""', 2, "the column to predict"),
        ('"continuous"', '"real"', 6, "expected one of auto, continuous, discrete"),
        ('"discrete"', '"real"', 7, "expected one of auto, continuous, discrete"),
        ('"age [years]"', '"outcome"', 6, "'outcome' is the label and a feature"),
        ("deadline = 60", "deadline = 0", 10, "limits.deadline is 0"),
        ("deadline = 60", "quorum = 1.5", 10, "above 0 and at most 1"),
        ("deadline = 60", "message_bytes = 10", 10, "of 1024 or more"),
        ("deadline = 60", "wait = 60", 10, "'wait' is no entry of [limits]"),
        ("rounds = 64", "rounds = ", 3, "at line 3"),
        ("rounds = 64", f"rounds = {'9' * 5000}", None, "expected TOML"),
        ('network = "hospitals"', "", None, "network is missing"),
    ],
)
def test_mistakes_are_refused_by_line(tmp_path, old, new, line, says):
    assert old in GOOD
    path = tmp_path / "agreement.toml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(TermsError) as refused:
        Terms.read(path)
    assert says in str(refused.value) and str(path) in str(refused.value)
    assert line is None or f"line {line}" in str(refused.value)


@pytest.mark.parametrize("name", ["features", "limits"])
def test_sections_must_be_sections(name):
    with pytest.raises(TermsError, match=f"line 3: {name} is 3"):
        Terms.parse(f'network = "n"\nlabel = "y"\n{name} = 3', "here")


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"a = " + b"[" * 5000])
def test_files_that_cannot_be_read(tmp_path, content):
    path = tmp_path / "agreement.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TermsError, match=r"agreement\.toml"):
        Terms.read(path)


def test_terms_made_in_python_are_checked_too():
    for wrong in (
        {"rounds": 0},
        {"lr": True},
        {"features": {"y": "auto"}},
        {"features": {"x": "real"}},
        {"label": ""},
    ):
        with pytest.raises(TermsError):
            Terms(**{"network": "n", "label": "y", **wrong})
    with pytest.raises(TermsError):
        Limits(quorum=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Terms("n", "y").rounds = 3


NOISY = Terms(
    "n", "y", {"x": "continuous"}, {"x": Facts(1.0, 2.0)}, ("a", "b"), privacy=Privacy(epsilon=4.0, rows=100.0)
)  # fmt: skip


def test_all_that_was_agreed_on_is_in_the_digest():
    """A founder could otherwise show each member other terms under one roster."""
    privacy = NOISY.privacy
    others = [
        {"facts": {"x": Facts(1.0, 2.5)}}, {"facts": {"x": Facts(1.0, 2.0, missing=True)}}, {"classes": ("a", "c")},
        {"privacy": dataclasses.replace(privacy, epsilon=5.0)}, {"privacy": dataclasses.replace(privacy, delta=1e-4)},
        {"privacy": dataclasses.replace(privacy, min_rows=60)}, {"privacy": dataclasses.replace(privacy, rows=99.0)},
        {"robust": Robust("clip")}, {"rounds": 65}, {"lr": 0.06}, {"label": "z"}, {"network": "m"},
        {"limits": Limits(rows=2)}, {"limits": Limits(message_bytes=2048)},
    ]  # fmt: skip
    assert len({dataclasses.replace(NOISY, **other).digest for other in ({}, *others)}) == len(others) + 1


def test_masked_messages_cannot_be_judged():
    with pytest.raises(TermsError, match="masked messages cannot be judged"):
        Terms("n", "y", privacy=Privacy(secure_sum=True), robust=Robust("clip"))


@pytest.mark.parametrize("delta", [0.0, 1.0, 1.5, -1e-5])
def test_a_probability_is_between_0_and_1(delta):
    with pytest.raises(TermsError, match=r"delta is .* expected a probability"):
        Privacy(epsilon=1.0, delta=delta)


PLAIN, MASKED = Terms("n", "y"), Terms("n", "y", privacy=Privacy(secure_sum=True))
GUARDED = Terms("n", "y", robust=Robust("clip", guard=True))


@pytest.mark.parametrize(
    ("terms", "met", "not_met"),
    [
        (NOISY, [{"epsilon": 4.0}, {"epsilon": 9}, {"delta": 1e-5}, {"min_rows": 50}],
         [{"epsilon": 3.9}, {"delta": 9e-6}, {"min_rows": 51}, {"secure_sum": True}]),
        (PLAIN, [{"min_rows": 1}, {"secure_sum": False}, {"combine": "mean"}, {"guard": False}],
         [{"epsilon": 100.0}, {"delta": 0.5}, {"min_rows": 2}, {"secure_sum": True}, {"combine": "clip"},
          {"guard": True}]),
        (MASKED, [{"secure_sum": True}, {"secure_sum": False}], [{"epsilon": 100.0}]),
        (GUARDED, [{"guard": True}, {"combine": "clip"}, {"combine": "mean"}], [{"secure_sum": True}]),
    ],
    ids=["noisy", "plain", "masked", "guarded"],
)  # fmt: skip
def test_a_demand_is_met_by_the_same_or_by_more(terms, met, not_met):
    for demand in met:
        refuse_weaker(terms, demand, "peer.toml")
    for demand in not_met:
        with pytest.raises(TermsError, match=f"peer.toml requires {next(iter(demand))} = "):
            refuse_weaker(terms, demand, "peer.toml")


@given(st.text(max_size=200))
def test_any_text_is_terms_or_refused(text):
    with pytest.raises(TermsError):
        Terms.parse(text, "here")
