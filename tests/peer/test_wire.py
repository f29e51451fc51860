"""What may come over the wire and lie on disk: whatever the bytes, they are what they should be, or refused by name."""

import asyncio
import json
import logging
import math
import sqlite3
from fractions import Fraction

import msgspec
import numpy as np
import pytest

pytest.importorskip("cryptography")
from hypothesis import given, settings
from hypothesis import strategies as st

from peerbayes.errors import PeerError, RefusedMessage, SchemaMismatch
from peerbayes.learning.integer_sums import SUM_BITS
from peerbayes.peer.agreement.summary import (
    LARGEST,
    ColumnSummary,
    Summary,
    Sums,
    packed,
    unpacked,
    with_scales,
)
from peerbayes.peer.agreement.tree_sums import pooled
from peerbayes.peer.learning.learner import Attachment
from peerbayes.peer.protocol import wire
from peerbayes.peer.protocol.wire import Reply, Request
from peerbayes.peer.state import audit_log, store
from peerbayes.peer.state.audit_log import AuditLog
from peerbayes.peer.state.store import RoundRecord, Store
from peerbayes.peer.status import LINES_AT_ONCE, Journal

names = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=64)
wholes = st.integers(0, 1 << 40)
kinds = st.sampled_from(["hello", "roster", "leave", "sum", "first", "round"])
finite = st.floats(allow_nan=False, allow_infinity=False)

requests = st.builds(
    Request, st.just(wire.VERSION), names, names, kinds, phase=names, round_index=wholes, schema=names, done=wholes,
    roster=wholes, wait=st.floats(0, 60), body=st.binary(max_size=40),
    heard=st.lists(
        st.builds(wire.Statement, names, wholes, st.binary(min_size=32, max_size=32), st.binary(max_size=80)),
        max_size=3,
    ).map(tuple),
)  # fmt: skip


@st.composite
def exchanges(draw):
    """A request, and an honest reply with numbers to it."""
    asked = draw(requests)
    array = np.array(draw(st.lists(finite, min_size=6, max_size=6))).reshape(2, 3)
    body = array.tobytes()
    told = Reply(
        wire.VERSION, asked.run, "b", asked.kind, "ok", phase=asked.phase, round_index=asked.round_index,
        schema=asked.schema, done=draw(wholes), roster=draw(wholes), shape=(2, 3),
        digest=wire.digest_of(body), body=body,
    )  # fmt: skip
    return asked, told, array


@st.composite
def damaged(draw, content):
    """The bytes with a few of them changed, taken out, doubled, or put in."""
    content = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        kind = draw(st.sampled_from("cdix"))
        if kind == "c" and at < len(content):
            content[at] = draw(st.integers(0, 255))
        elif kind == "d":
            del content[at : at + draw(st.integers(1, 20))]
        elif kind == "i":
            content[at:at] = draw(st.binary(min_size=1, max_size=20))
        else:
            content[at:at] = content[at : at + draw(st.integers(1, 20))]
    return bytes(content)


# --- messages ------------------------------------------------------------------------------------------


@given(requests)
def test_a_request_is_read_back(asked):
    assert wire.request_in(wire.encode(asked)) == asked


@given(exchanges())
def test_a_reply_is_read_back_to_the_bit(exchange):
    asked, told, array = exchange
    read = wire.reply_in(wire.encode(told), asked, "b")
    assert read == told
    assert wire.numbers_in(read, (2, 3)).tobytes() == array.tobytes()


@settings(max_examples=500)
@given(st.data())
def test_a_damaged_request_is_a_request_or_refused(data):
    content = data.draw(damaged(wire.encode(data.draw(requests))) | st.binary(max_size=200))
    try:
        asked = wire.request_in(content)
    except RefusedMessage as error:
        assert error.reason in ("unreadable", "other version")
    else:
        assert wire.request_in(wire.encode(asked)) == asked


@settings(max_examples=500)
@given(st.data())
def test_a_damaged_reply_is_refused_by_name_or_what_was_asked_for(data):
    asked, told, array = data.draw(exchanges())
    content = data.draw(damaged(wire.encode(told)) | st.binary(max_size=200))
    try:
        read = wire.reply_in(content, asked, "b")
        numbers = wire.numbers_in(read, (2, 3)) if read.status == "ok" else None
    except RefusedMessage as error:
        assert error.reason and str(error)
        return
    assert (read.sender, read.kind, read.phase, read.round_index) == (
        "b",
        asked.kind,
        asked.phase,
        asked.round_index,
    )
    if numbers is not None and asked.kind in wire.OF_RUN:
        assert numbers.tobytes() == array.tobytes()  # the digest vouches for them


REPLY = Reply(wire.VERSION, "run", "b", "round", "ok", round_index=3, schema="s", shape=(2,), body=bytes(16))
REPLY = msgspec.structs.replace(REPLY, digest=wire.digest_of(REPLY.body))
ASKED = Request(wire.VERSION, "run", "a", "round", round_index=3, schema="s")
SAID = wire.Statement("c", 2, bytes(32), bytes(72))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 1}, "other version"),
        ({"sender": "c"}, "speaks for another"),
        ({"run": "other"}, "wrong network"),
        ({"kind": "sum"}, "wrong message"),
        ({"phase": "columns"}, "wrong message"),
        ({"round_index": 2}, "wrong round"),
        ({"schema": "t"}, "wrong schema"),
        ({"digest": bytes(32)}, "wrong digest"),
        ({"digest": b""}, "wrong digest"),
        ({"body": bytes(24)}, "wrong digest"),
        ({"shape": (1, 2)}, "wrong shape"),
        ({"shape": (2, 1 << 40)}, "wrong shape"),
        ({"shape": ()}, "wrong shape"),
        ({"body": b"", "digest": wire.digest_of(b"")}, "wrong shape"),
        ({"body": bytes(17), "digest": wire.digest_of(bytes(17))}, "wrong shape"),
        ({"run": "x\n12:00 all is well"}, "unreadable"),
        ({"sender": "b\x1b[2J"}, "unreadable"),
        ({"sender": "b\n"}, "unreadable"),
        ({"signature": bytes(81)}, "unreadable"),
        ({"reason": "x" * 501}, "unreadable"),
        ({"shape": (1, 1, 1, 1, 2)}, "unreadable"),
    ],
)
def test_each_field_of_a_reply_is_checked(changes, reason):
    with pytest.raises(RefusedMessage) as refused:
        wire.numbers_in(
            wire.reply_in(wire.encode(msgspec.structs.replace(REPLY, **changes)), ASKED, "b"), (2,)
        )
    assert refused.value.reason == reason


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_only_finite_numbers_are_taken(bad):
    body = np.array([0.0, bad]).tobytes()
    told = msgspec.structs.replace(REPLY, body=body, digest=wire.digest_of(body))
    with pytest.raises(RefusedMessage) as refused:
        wire.numbers_in(wire.reply_in(wire.encode(told), ASKED, "b"), (2,))
    assert refused.value.reason == "not finite"


@pytest.mark.parametrize(
    "content",
    [
        b"\xdd\xff\xff\xff\xff",  # a list of four thousand million
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\x91" * 100_000,  # a list in a list in a list…
        b"\x81\xa1x" * 50_000,
        b"\x80",
        b"",
        b"cos\nsystem\n(S'true'\ntR.",  # a pickle
        msgspec.msgpack.encode({"run": "", "sender": "", "kind": "hello"}),
        msgspec.msgpack.encode({"version": wire.VERSION, "run": "x" * 65, "sender": "", "kind": "hello"}),
        msgspec.msgpack.encode(
            {"version": wire.VERSION, "run": "", "sender": "", "kind": "hello", "wait": math.nan}
        ),
        msgspec.msgpack.encode(
            {"version": wire.VERSION, "run": "", "sender": "", "kind": "hello", "turn": -1}
        ),
        msgspec.msgpack.encode(
            {"version": wire.VERSION, "run": "", "sender": "", "kind": "hello", "turn": 1 << 41}
        ),
    ],
)
def test_traps_of_the_format_are_unreadable(content):
    for read in (wire.request_in, lambda content: wire.reply_in(content, ASKED, "b")):
        with pytest.raises(RefusedMessage) as refused:
            read(content)
        assert refused.value.reason == "unreadable"
    for parse in (Summary.parse, Sums.parse):
        try:
            assert parse(content) == {}  # no sums are sums
        except RefusedMessage as error:
            assert error.reason == "unreadable"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": wire.VERSION + 1}, "other version"),
        ({"version": 1}, "other version"),
        ({"sender": "a\n"}, "unreadable"),
        ({"wait": 60.5}, "unreadable"),
        ({"heard": (SAID,) * (wire.MOST_STATEMENTS + 1)}, "unreadable"),
        ({"heard": (msgspec.structs.replace(SAID, digest=bytes(31)),)}, "unreadable"),
        ({"heard": (msgspec.structs.replace(SAID, signature=bytes(81)),)}, "unreadable"),
    ],
)
def test_each_field_of_a_request_is_checked(changes, reason):
    full = msgspec.structs.replace(ASKED, wait=60.0, heard=(SAID,) * wire.MOST_STATEMENTS)
    assert wire.request_in(wire.encode(full)) == full
    with pytest.raises(RefusedMessage) as refused:
        wire.request_in(wire.encode(msgspec.structs.replace(ASKED, **changes)))
    assert refused.value.reason == reason


def test_what_is_signed_names_the_run_the_round_and_the_message():
    """And what it is: no statement passes for another, or for any other signature of a peer."""
    usual = {"run": "0" * 64, "round_index": 1, "digest": bytes(32)}
    statements = {
        wire.statement(**usual | other)
        for other in (
            {},
            {"run": "1" * 64},
            {"round_index": 2},
            {"digest": bytes(31) + b"1"},
            {"round_index": 11},
        )
    }
    assert len(statements) == 5 and all(each.startswith(b"peerbayes statement\n") for each in statements)
    said = wire.Statement("b", 1, bytes(32), b"")
    assert said.content("0" * 64) == wire.statement(**usual) != said.content("1" * 64)


def test_a_request_has_a_largest_size():
    with pytest.raises(RefusedMessage) as refused:
        wire.request_in(bytes(wire.LARGEST_REQUEST + 1))
    assert refused.value.reason == "too large"


# --- sums ----------------------------------------------------------------------------------------------


@given(finite, st.integers(1, 50))
def test_a_sum_of_floats_is_packed_exactly(value, times):
    exact = Fraction(value) * times
    assert unpacked(packed(exact)) == exact


tags = st.one_of(
    st.tuples(st.just("b"), st.booleans()),
    st.tuples(st.just("n"), st.integers(-(2**63), 2**64 - 1) | finite),
    st.tuples(st.just("t"), st.text(max_size=8)),
)
moderate = st.floats(-1e200, 1e200)


@st.composite
def summaries(draw, columns=("x", "y", "z")):
    peers = draw(st.integers(1, 5))
    rows = peers + draw(st.integers(0, 100))

    def column():
        count = draw(st.integers(1, rows))
        return ColumnSummary(
            draw(st.integers(1, peers)),
            draw(
                st.dictionaries(
                    st.sampled_from(["continuous", "text", "numbers", "empty"]),
                    st.lists(names, max_size=3).map(tuple),
                    min_size=1,
                )
            ),
            frozenset(draw(st.lists(tags, min_size=1, max_size=4))),
            count,
            Fraction(draw(moderate)) * count,
        )

    order = tuple(draw(st.permutations(columns)))
    classes = frozenset(draw(st.lists(tags, max_size=4)))
    return Summary(peers, rows, order, {name: column() for name in order}, classes)


@given(summaries())
def test_a_summary_is_read_back(summary):
    assert Summary.parse(summary.pack()) == summary


@given(summaries(), summaries(), summaries())
def test_summaries_merge_to_the_same_bytes_in_any_order(a, b, c):
    merged = {
        s.pack() for s in (a + b + c, a + (b + c), c + b + a, b + a + c) if a.order == b.order == c.order
    }
    assert len(merged) <= 1
    assert (a + b).columns == (b + a).columns


@settings(max_examples=200)
@given(st.data())
def test_a_damaged_summary_is_refused_or_can_be_used(data):
    content = data.draw(damaged(data.draw(summaries()).pack()) | st.binary(max_size=200))
    try:
        summary = Summary.parse(content)
    except RefusedMessage as error:
        assert error.reason in ("unreadable", "implausible", "absurd magnitude")
        return
    try:
        summary.schema("label", None)
    except SchemaMismatch as error:
        assert "do not fit" in str(error)  # what two honest tables may also be told


def summary_of(total="0/0", count=1, kinds=None, categories=(), peers=1, rows=1, name="x", holders=1):
    column = [holders, kinds or {"continuous": ["a"]}, list(categories), count, total]
    return msgspec.msgpack.encode([peers, rows, [name], {name: column}, [["t", "a"], ["t", "b"]]])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (summary_of(total="f" * 600 + "/0"), "absurd magnitude"),
        (summary_of(total="1/0", count=0), "absurd magnitude"),
        (summary_of(total="f" * 601 + "/0"), "unreadable"),
        (summary_of(total="1/99999999999"), "unreadable"),
        (summary_of(total="1/-1"), "unreadable"),
        (summary_of(count=2), "implausible"),
        (summary_of(count=-1), "implausible"),
        (summary_of(holders=2), "implausible"),
        (summary_of(holders=0), "implausible"),
        (summary_of(kinds={"continuous": ["a", "b", "c", "d"]}), "unreadable"),
        (summary_of(kinds={"continuous": ["a" * 65]}), "unreadable"),
        (summary_of(peers=2), "implausible"),
        (summary_of(peers=0), "implausible"),
        (summary_of(peers=-1, rows=-1), "implausible"),
        (msgspec.msgpack.encode([0, 0, [], {}, [["t", "a"], ["t", "b"]]]), "implausible"),  # of nobody
        (msgspec.msgpack.encode([1, 1, ["x"], {}, [["t", "a"], ["t", "b"]]]), "implausible"),
        (summary_of(kinds={"text": ["a"]}), "unreadable"),  # a value, but of no category
        (summary_of(kinds={"guess": ["a"]}), "unreadable"),
        (summary_of(kinds={"text": ["a"]}, categories=[["n", math.nan]]), "unreadable"),
        (summary_of(kinds={"text": ["a"]}, categories=[["t", 1]]), "unreadable"),
        (summary_of(name="x" * LARGEST), "too large"),
        (
            b"\x95\x01\x01\x90\x80\x91\x92\xa1t" + b"\x91" * 100_000,
            "unreadable",
        ),  # a category that never ends
    ],
)
def test_summaries_that_nobody_can_have(content, reason):
    with pytest.raises(RefusedMessage) as refused:
        Summary.parse(content)
    assert refused.value.reason == reason and len(str(refused.value)) < 500


@given(st.dictionaries(st.text(max_size=8), st.floats(0, 1e200).map(Fraction), max_size=5))
def test_sums_are_read_back(numbers):
    sums = Sums(numbers)
    assert Sums.parse(sums.pack()) == sums == Sums.named(*numbers)(sums.pack())
    with pytest.raises(RefusedMessage) as refused:
        Sums.named(*numbers, "another")(sums.pack())
    assert refused.value.reason == "wrong message"


@pytest.mark.parametrize("value", ["-1/0", "1" + "0" * 300 + "/0", "f" * 600 + "/0"])
def test_sums_are_neither_negative_nor_beyond_floats(value):
    with pytest.raises(RefusedMessage) as refused:
        Sums.parse(msgspec.msgpack.encode({"x": value}))
    assert refused.value.reason == "absurd magnitude"


@settings(max_examples=300)
@given(st.data())
def test_damaged_sums_are_refused_or_give_a_scale(data):
    schema = Summary.parse(summary_of()).schema("label", None)
    honest = Sums(x=Fraction(data.draw(st.floats(0, 1e200)))).pack()
    try:
        sums = Sums.named("x")(data.draw(damaged(honest)))
    except RefusedMessage:
        return
    assert with_scales(schema, sums).columns[0].scale > 0


def test_parts_of_a_pooled_sum_have_its_shape_and_no_more_than_all_can_have():
    phases = {}

    async def total(phase, own):
        phases[phase.name] = phase.parse, own
        return own

    numbers = np.array([[1.0, -2.0, 0.5]])
    np.testing.assert_allclose(asyncio.run(pooled("start", numbers, total)), numbers, rtol=1e-15)
    parse, own = phases["start"]
    assert (parse(own.pack()).values == own.values).all()
    most = np.full((1, 3), (1 << SUM_BITS) - 1)
    assert (parse(most.tobytes()).values == most).all()
    for content, reason in (
        (own.pack() + bytes(8), "wrong shape"),
        (own.pack()[:-8], "wrong shape"),
        ((most + 1).tobytes(), "absurd magnitude"),
        ((-most - 1).tobytes(), "absurd magnitude"),
        (np.full((1, 3), np.iinfo(np.int64).min).tobytes(), "absurd magnitude"),
    ):
        with pytest.raises(RefusedMessage) as refused:
            parse(content)
        assert refused.value.reason == reason


# --- the store -----------------------------------------------------------------------------------------


def state_of(rng, depth=2):
    if depth == 0:
        return rng.normal(size=tuple(rng.integers(1, 4, rng.integers(0, 3))))
    return tuple(state_of(rng, depth - 1) for _ in range(rng.integers(1, 4)))


def leaves(state):
    return [leaf for part in state for leaf in leaves(part)] if isinstance(state, tuple | list) else [state]


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 5))
def test_a_store_keeps_the_last_state_and_the_messages_of_late_rounds(tmp_path_factory, seed, rounds, kept):
    rng = np.random.default_rng(seed)
    path = tmp_path_factory.mktemp("store") / "state.sqlite"
    told, beside, states = {}, {}, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "KEPT", kept)
        opened = Store(path)
        for turn in range(rounds):
            if rng.random() < 0.5:  # as after a crash
                opened.close()
                opened = Store(path)
            shared = rng.normal(size=(2, 3)).round(rng.integers(0, 2))  # some are equal
            told[turn + 1] = {"b": shared, "c": rng.choice([shared, -shared])}
            beside[turn + 1] = (
                {"c": Attachment(turn % 4, rng.choice([shared, 2 * shared]))} if turn % 2 else {}
            )
            states.append(state_of(rng) if turn % 3 else (shared, (shared,)))
            record = RoundRecord(turn, states[-1], told[turn + 1], ("b",), ("c",), attached=beside[turn + 1])
            opened.add_round(record)
            with pytest.raises(sqlite3.IntegrityError):
                opened.add_round(RoundRecord(turn, states[-1], {}, (), ()))  # a round is stored once
        opened.close()
    opened = Store(path, readonly=True)
    turn, state = opened.last()
    assert turn == rounds - 1
    for one, other in zip(leaves(state), leaves(states[-1]), strict=True):
        assert one.tobytes() == np.asarray(other).tobytes() and one.shape == np.shape(other)
    oldest = max(1, rounds - kept)
    assert opened.oldest() == oldest
    for turn, receivers in told.items():
        for receiver, message in receivers.items():
            found = opened.message(turn, receiver)
            assert (found is None) == (turn < oldest)
            missed, correction = beside[turn].get(receiver, (0, np.zeros(0)))
            digest = wire.digest_of(message.tobytes())
            assert found is None or found == (message.tobytes(), digest, missed, correction.tobytes())
    assert opened.message(rounds + 1, "b") is None and opened.message(rounds, "stranger") is None
    assert [entry["round"] for entry in opened.history()] == list(range(rounds))
    count = opened._db.execute("SELECT COUNT(*) FROM arrays").fetchone()[0]
    late = [turn for turn in told if turn >= oldest]
    needed = [*leaves(states[-1]), *(message for turn in late for message in told[turn].values())]
    needed += [correction for turn in late for _, correction in beside[turn].values()]
    assert count == len(
        {(np.shape(array), np.asarray(array).tobytes()) for array in needed}
    )  # nothing else stays
    opened.close()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE arrays SET body = zeroblob(length(body))",
        "UPDATE arrays SET body = x'00'",
        "DELETE FROM arrays",
        "UPDATE rounds SET state = '[]'",
        "UPDATE rounds SET digest = x'00'",
        "UPDATE meta SET value = '2' WHERE key = 'format'",
    ],
)
def test_a_damaged_store_says_so(tmp_path, damage):
    opened = Store(tmp_path / "state.sqlite")
    opened.add_round(RoundRecord(0, (np.ones((2, 3)),), {"b": np.ones((2, 3))}, (), ()))
    opened._db.execute(damage)
    opened.close()
    with pytest.raises(PeerError):
        again = Store(tmp_path / "state.sqlite")
        try:
            again.last()
        finally:
            again.close()


# --- the audit log -------------------------------------------------------------------------------------

sendings = st.lists(st.tuples(names, names, st.integers(0, 1 << 40), st.binary(max_size=32)), max_size=6)


def logged(folder, sent):
    path = folder / "audit.jsonl"
    path.unlink(missing_ok=True)
    for place, entry in enumerate(sent):
        if place % 2 == 0:
            log = AuditLog(path)  # as after a restart
        log.add(*entry)
        if place % 2 == 1 or place == len(sent) - 1:
            log.close()
    return path


@given(sendings)
def test_what_was_sent_is_in_the_audit_log(tmp_path_factory, sent):
    path = logged(tmp_path_factory.mktemp("audit"), sent)
    found = [(e["to"], e["what"], e["bytes"], bytes.fromhex(e["digest"])) for e in audit_log.entries(path)]
    assert found == sent


@settings(max_examples=200)
@given(sendings.filter(bool), st.data())
def test_no_byte_of_the_audit_log_can_change_unseen(tmp_path_factory, sent, data):
    path = logged(tmp_path_factory.mktemp("audit"), sent)
    content = path.read_bytes()
    changed = data.draw(damaged(content))
    path.write_bytes(changed)
    try:
        found = b"".join(json.dumps(entry).encode() for entry in audit_log.entries(path))
    except PeerError as error:
        assert "was changed" in str(error)
        return
    # Only an end can be taken off, or an unfinished line put there: nothing vouches for what comes last.
    whole = changed[: changed.rfind(b"\n") + 1]
    assert content.startswith(whole) and found.count(b'"at"') == whole.count(b"\n")


@pytest.mark.parametrize(
    "line", [b"[1]", b'"text"', b"null", b"{}", b"[" * 100_000, b'{"chain": []}', b"\xff"]
)
def test_lines_that_are_no_entries_show(tmp_path, line):
    path = logged(tmp_path, [("b", "round 1", 8, b"x")])
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(PeerError, match="line 2"):
        list(audit_log.entries(path))


def test_a_line_that_says_two_things_shows(tmp_path):
    path = logged(tmp_path, [("b", "round 1", 8, b"x")])
    path.write_bytes(path.read_bytes().replace(b'"to": "b"', b'"to": "nobody", "to": "b"'))
    with pytest.raises(PeerError, match="was changed"):
        list(audit_log.entries(path))


@given(sendings.filter(bool), st.integers(1, 60))
def test_a_line_that_a_power_cut_left_is_taken_off(tmp_path_factory, sent, cut):
    path = logged(tmp_path_factory.mktemp("audit"), sent)
    content = path.read_bytes()
    path.write_bytes(content[:-cut])
    log = AuditLog(path)
    log.add("z", "round 9", 1, b"")
    log.close()
    assert [entry["to"] for entry in audit_log.entries(path)] == [*(to for to, *_ in sent[:-1]), "z"]


def test_a_line_that_the_disk_does_not_take_does_not_break_the_chain(tmp_path):
    log = AuditLog(tmp_path / "audit.jsonl")
    log.add("b", "round 1", 1, b"")
    file, log._file = log._file, open("/dev/full", "ab", buffering=0)  # noqa: PTH123, SIM115
    with pytest.raises(OSError):
        log.add("b", "round 2", 1, b"")
    log._file.close()
    log._file = file
    log.add("b", "round 3", 1, b"")
    log.close()
    assert [entry["what"] for entry in audit_log.entries(log.path)] == ["round 1", "round 3"]


# --- what is told --------------------------------------------------------------------------------------


def test_a_neighbour_cannot_write_lines_of_its_own_nor_many(tmp_path, caplog):
    opened = Store(tmp_path / "state.sqlite")
    journal = Journal(opened)
    with caplog.at_level(logging.INFO, "peerbayes.peer"):
        for place in range(1000):
            journal(
                "neighbour", {"neighbour": "b", "note": f"it refuses: {place}\n12:00 \x1b[31mall is well"}
            )
            journal.refused("b\n", "wrong network", f"run \r\n{place}")
    lines = [record.message for record in caplog.records]
    assert len(lines) <= LINES_AT_ONCE + 2 + 4  # and the first, tenth, hundredth and thousandth refusal
    assert all(line.isprintable() for line in lines)
    journal.flush({})
    assert [(entry["who"], entry["reason"], entry["count"]) for entry in opened.refusals()] == [
        ("b ", "wrong network", 1000)
    ]
    opened.close()


def test_refusals_of_many_names_take_bounded_room(tmp_path):
    opened = Store(tmp_path / "state.sqlite")
    journal = Journal(opened)
    logging.disable(logging.WARNING)
    try:
        for place in range(20_000):
            journal.refused(f"peer-{place}", f"reason {place % 7}", "detail")
    finally:
        logging.disable(logging.NOTSET)
    journal.flush({})
    assert len(opened.refusals()) < 1100 and sum(entry["count"] for entry in opened.refusals()) == 20_000
    opened.close()
