"""Rosters and invitations: only what the authority signed, to the byte."""

import json
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("cryptography")
pytest.importorskip("msgspec")
from hypothesis import given, settings
from hypothesis import strategies as st

from peerbayes.errors import IdentityError, TermsError, TwoRosters
from peerbayes.network.mixing import checked
from peerbayes.peer.agreement.column_facts import canonical
from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.identity import keys
from peerbayes.peer.identity.founder import LARGEST as LARGEST_INVITATION
from peerbayes.peer.identity.founder import Invitation
from peerbayes.peer.identity.roster import LARGEST, PURPOSE, Member, Roster, valid_address
from peerbayes.peer.state.folder import Home, Settings

KEY, AUTHORITY = keys.new_authority("hospitals")
TERMS = Terms("hospitals", "outcome", strategy="exact")
EMPTY = Roster("hospitals", TERMS.digest, 0, (), ())


def member(name, port=7070, mark="0"):
    return Member(name, f"{name}.example.org:{port}", mark * 64)


def roster_of(*links, members="abcd", **changes):
    pairs = tuple(tuple(link) for link in links)
    return Roster("hospitals", TERMS.digest, 7, tuple(map(member, members)), pairs, **changes)


@st.composite
def rosters(draw):
    names = draw(st.lists(st.from_regex(r"[a-z0-9]{1,6}", fullmatch=True), unique=True, max_size=6))
    pairs = [(one, other) for place, one in enumerate(names) for other in names[:place]]
    links = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    revoked = draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    version = draw(st.integers(0, 2**53 - 1))
    open_ = Roster(
        "hospitals", TERMS.digest, version, tuple(map(member, names)), tuple(links), tuple(revoked)
    )
    return open_.with_closed() if len(open_.parts()) == 1 and draw(st.booleans()) else open_


@given(rosters())
def test_what_is_signed_is_read_back(roster):
    signed = roster.signed(KEY)
    read = Roster.verified(signed, AUTHORITY)
    assert read == roster and read.run == roster.run and read.to_json() == roster.to_json()
    assert roster.differences(read) == []


SIGNED = roster_of("ab", "bc", "cd", revoked=("d",)).signed(KEY)


@settings(max_examples=400)
@given(st.integers(0, len(SIGNED) - 1), st.integers(1, 255))
def test_any_altered_byte_of_a_roster_is_refused(place, change):
    altered = bytearray(SIGNED)
    altered[place] ^= change
    with pytest.raises(IdentityError):
        Roster.verified(bytes(altered), AUTHORITY)


def test_signatures_in_another_case_or_form_are_refused():
    document = json.loads(SIGNED)
    for other in (
        canonical({**document, "signature": document["signature"].upper()}),
        canonical({**document, "more": 1}),
        json.dumps(document).encode(),
        SIGNED + b"\n",
        b"\xef\xbb\xbf" + SIGNED,
    ):
        with pytest.raises(IdentityError):
            Roster.verified(other, AUTHORITY)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.binary(max_size=100) | plain.map(lambda value: json.dumps(value).encode()))
def test_garbage_is_refused_by_name(content):
    for read in (lambda: Roster.verified(content, AUTHORITY), lambda: Invitation.parse(content)):
        with pytest.raises(IdentityError):
            read()


@given(
    st.sampled_from(["format", "network", "terms", "version", "members", "links", "revoked", "closed"]), plain
)
def test_nonsense_is_refused_even_when_signed(name, value):
    """A founder with another program may sign anything."""
    genuine = json.loads(roster_of("ab").to_json())
    content = {**genuine, name: value}
    if content != genuine or type(content[name]) is not type(genuine[name]):
        with pytest.raises(IdentityError):
            Roster.verified(_signed(content), AUTHORITY)
    for other in (value, {**genuine, "more": value}, {key: genuine[key] for key in genuine if key != name}):
        with pytest.raises(IdentityError):
            Roster.verified(_signed(other), AUTHORITY)


def _signed(content):
    signature = keys.sign(KEY, PURPOSE + canonical(content)).hex()
    return canonical({"roster": content, "signature": signature})


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b" " * (LARGEST + 1), "expected at most"),
        (b'{"roster":' + b"[" * 100_000, "no signed roster"),
        (b'{"roster":' + b"9" * 10_000 + b',"signature":""}', "no signed roster"),
        (b'{"roster":{},"signature":"00"}', "signature does not match"),
        (b'{"roster":{},"signature":7}', "no signed roster"),
        (roster_of("ab").signed(keys.new_authority("hospitals")[0]), "signed by somebody else"),
        (Roster("others", TERMS.digest, 1, (), ()).signed(KEY), "'hospitals'; its roster is of 'others'"),
    ],
)
def test_rosters_that_are_refused(content, says):
    with pytest.raises(IdentityError, match=says):
        Roster.verified(content, AUTHORITY)


def test_other_signatures_of_the_authority_are_no_rosters():
    plain = json.loads(roster_of("ab").to_json())
    signature = keys.sign(KEY, canonical(plain)).hex()
    with pytest.raises(IdentityError, match="signature does not match"):
        Roster.verified(canonical({"roster": plain, "signature": signature}), AUTHORITY)


# --- the value -----------------------------------------------------------------------------------------------


def test_places_neighbours_and_adjacency():
    roster = roster_of("ca", "db", "ab")
    assert [roster.place(name) for name in "abcd"] == [0, 1, 2, 3]
    assert roster.member("c") == member("c")
    assert roster.neighbours("a") == ("b", "c") and roster.neighbours("d") == ("b",)
    assert roster.links == (("a", "b"), ("a", "c"), ("b", "d"))
    adjacency = checked(roster.adjacency(), 4)
    assert (adjacency != roster.adjacency()).nnz == 0
    assert np.array_equal(adjacency.toarray(), [[0, 1, 1, 0], [1, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0]])
    assert EMPTY.with_member(member("a"), ()).adjacency().shape == (1, 1)
    with pytest.raises(IdentityError, match=r"'e' is no member .* one of a, b, c, d"):
        roster.place("e")


@given(rosters())
def test_neighbours_are_the_rows_of_the_adjacency(roster):
    if not roster.members:
        return
    rows = roster.adjacency().toarray()
    names = [each.name for each in roster.members]
    for name, row in zip(names, rows, strict=True):
        assert roster.neighbours(name) == tuple(names[place] for place in np.flatnonzero(row))
    assert sorted(name for part in roster.parts() for name in part) == sorted(names)


def test_a_run_is_terms_names_and_links():
    roster = roster_of("ab", "bc", "cd")
    same = roster_of("dc", "cb", "ba")
    moved = roster.with_changed(Member("a", "elsewhere:1", "f" * 64))
    for other in (same, moved, roster.with_revoked("a"), roster.with_closed()):
        assert other.run == roster.run
    for other in (
        roster_of("ab", "bc", "ad"),
        roster_of("ab", "bc", "cd", members="abdc"),
        roster_of("ab", "bc", "cd", members="abcde"),
        Roster("hospitals", "1" * 64, 7, roster.members, roster.links),
        Roster("others", TERMS.digest, 7, roster.members, roster.links),
    ):
        assert other.run != roster.run


def test_each_change_is_the_next_version():
    one = EMPTY.with_member(member("a"), ())
    two = one.with_member(member("b"), ["a"])
    closed = two.with_closed()
    revoked = closed.with_revoked("b")
    assert [each.version for each in (EMPTY, one, two, closed, revoked)] == [0, 1, 2, 3, 4]
    assert revoked.members == two.members and revoked.revoked == ("b",) and revoked.closed
    assert two.without("a") == Roster("hospitals", TERMS.digest, 3, (member("b"),), (), ("a",))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda roster: roster.with_member(member("a"), ()), "'a' is in the roster twice"),
        (lambda roster: roster.with_member(member("e"), ["x"]), "'x' is no member"),
        (lambda roster: roster.with_member(member("e"), ["e"]), "to itself"),
        (lambda roster: roster.with_member(member("e"), ["a", "a"]), "occurs twice"),
        (lambda roster: roster.with_revoked("x"), "'x' is no member"),
        (lambda roster: roster.with_revoked("a").with_revoked("a"), "twice"),
        (lambda roster: roster.without("a").with_member(member("a"), ()), "was revoked"),
        (lambda roster: roster.with_revoked("a").with_changed(member("a")), "cannot come back"),
        (lambda roster: roster.with_changed(member("x")), "'x' is no member"),
        (lambda roster: roster.with_closed(), r"2 parts \(a b c; d\); expected one"),
        (lambda roster: EMPTY.with_closed(), "0 parts"),
        (
            lambda roster: roster_of("ab", members="ab").with_closed().with_member(member("e"), ()),
            "falls into 2 parts",
        ),
        (lambda roster: roster_of("ab", members="ab").with_closed().with_closed(), "closed already"),
        (lambda roster: roster_of("ab", members="ab").with_closed().without("a"), "not taken out"),
    ],
)
def test_changes_that_are_refused(change, says):
    with pytest.raises(IdentityError, match=says):
        change(roster_of("ab", "bc"))


def test_differences_read_well():
    one = roster_of("ab", "bc")
    other = one.with_changed(member("a", 9)).with_member(member("e"), ["a"]).with_revoked("d")
    assert one.differences(other) == [
        "version: 7 against 10",
        "member e: only in the second",
        "address of a: a.example.org:7070 against a.example.org:9",
        "link a - e: only in the second",
        "revoked d: only in the second",
    ]
    assert roster_of("ab").differences(roster_of("ab", members="abdc")) == [
        "order: the same members in another order"
    ]


@pytest.mark.parametrize(
    "address", ["a:1", "a.example.org:65535", "10.0.0.1:7070", "[::1]:7070", "localhost:80"]
)
def test_addresses(address):
    assert valid_address(address) == address


@pytest.mark.parametrize(
    "address", ["", "a", ":1", "a:", "a:0", "a:65536", "a:01", "a:x", "a:1\n", "::1:7070", "[a]:1", "a b:1", "-a:1",
                "http://a:1", "a:٣", "unix:/tmp/x:1"],
)  # fmt: skip
def test_addresses_that_are_refused(address):
    with pytest.raises(IdentityError, match="expected host:port"):
        valid_address(address)


@pytest.mark.parametrize("digest", ["", "0" * 63, "0" * 65, "A" * 64, "0" * 64 + "\n", "g" * 64])
def test_certificates_of_members_are_digests(digest):
    with pytest.raises(IdentityError, match=r"the certificate of a is .* expected a sha256 digest"):
        Member("a", "a:1", digest)
    with pytest.raises(IdentityError, match=r"the terms is .* expected a sha256 digest"):
        Roster("hospitals", digest, 0, (), ())


@pytest.mark.parametrize(("name", "address"), [("A", "a:1"), ("../a", "a:1"), ("a", "a"), ("a", "a:0")])
def test_members_have_names_and_addresses(name, address):
    with pytest.raises(IdentityError, match="expected"):
        Member(name, address, "0" * 64)


def test_revoked_neighbours_are_no_longer_present():
    roster = roster_of("ab", "ac", "ad", revoked=("c",))
    assert roster.neighbours("a") == ("b", "c", "d") and roster.present("a") == ("b", "d")


# --- invitations and homes -----------------------------------------------------------------------------------


def invitation(home, **changes):
    """What a founder would send for the request in a home."""
    name = home.settings().name
    certificate = keys.issue(KEY, AUTHORITY, home.request_path.read_bytes(), name)
    invited = Member(name, f"{name}.example.org:7070", keys.fingerprint(certificate))
    roster = EMPTY.with_member(invited, ())
    usual = {
        "network": "hospitals", "name": name, "certificate": certificate.decode(), "authority": AUTHORITY.decode(),
        "terms": "# ours\n" + TERMS.to_toml(), "roster": roster.signed(KEY).decode(),
    }  # fmt: skip
    return Invitation(**{**usual, **changes})


@pytest.fixture
def home(tmp_path):
    return Home.create(tmp_path / "north", "north", "north.example.org:7070", str(tmp_path / "rows.csv"))


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed")
    return invitation(Home.create(folder, "north", "north.example.org:7070", "rows.csv")).pack()


def test_an_invitation_is_read_back(home):
    sent = invitation(home)
    assert Invitation.parse(sent.pack()) == sent
    assert sent.parsed_terms() == TERMS and sent.verified_roster().version == 1


@given(st.data())
@settings(max_examples=400)
def test_any_altered_byte_of_an_invitation_is_refused(packed, data):
    place = data.draw(st.integers(0, len(packed) - 1))
    altered = bytearray(packed)
    altered[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(IdentityError):
        Invitation.parse(bytes(altered))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"network": "others"}, "network"),
        ({"name": "south"}, "is for 'north'"),
        ({"name": "../x"}, "lower-case"),
        ({"terms": Terms("hospitals", "other", strategy="exact").to_toml()}, "agreement"),
        ({"terms": "nonsense"}, "expected TOML"),
        ({"authority": keys.new_authority("hospitals")[1].decode()}, "another authority"),
        ({"certificate": "ü\ud800"}, "cannot be read"),
        ({"roster": EMPTY.signed(KEY).decode()}, "'north' is no member"),
        ({"roster": EMPTY.with_member(member("north"), ()).signed(KEY).decode()}, "certificate"),
        ({"roster": "{}"}, "no signed roster"),
    ],
)
def test_invitations_whose_parts_do_not_fit(home, changes, says):
    with pytest.raises(IdentityError, match=says):
        Invitation.parse(invitation(home, **changes).pack())


def test_an_invitation_has_a_largest_size(home):
    for content in (b" " * (LARGEST_INVITATION + 1), b'{"digest":' + b" " * LARGEST_INVITATION):
        with pytest.raises(IdentityError, match=f"bytes; expected at most {LARGEST_INVITATION}"):
            Invitation.parse(content)
    with pytest.raises(IdentityError, match=f"bytes; expected at most {LARGEST_INVITATION}"):
        invitation(home, terms="x" * LARGEST_INVITATION).pack()


def test_a_home_from_request_to_member(home, tmp_path):
    assert oct(home.key_path.stat().st_mode)[-3:] == oct(home.settings_path.stat().st_mode)[-3:] == "600"
    assert oct(home.folder.stat().st_mode)[-3:] == "700"
    with pytest.raises(IdentityError, match="has not joined yet"):
        home.load()
    sent = invitation(home)
    assert home.join(sent.pack()).version == 1
    assert home.join(sent.pack()).version == 1
    peer = home.load()
    assert (peer.name, peer.terms, peer.roster) == ("north", TERMS, sent.verified_roster())
    data = str(tmp_path / "rows.csv")
    assert peer.settings == Settings("north", "north.example.org:7070", "0.0.0.0:7070", data)
    assert peer.key.startswith(b"-----BEGIN PRIVATE KEY") and b"PRIVATE" not in sent.pack()
    with pytest.raises(IdentityError, match="already exists"):
        Home.create(home.folder, "north", "north.example.org:7070", "rows.csv")


def test_newer_rosters_are_kept_and_others_are_not(home):
    home.join(invitation(home).pack())
    first = home.roster()
    second = first.with_member(member("south"), ["north"])
    assert home.keep_roster(first.signed(KEY)) is None
    assert home.keep_roster(second.signed(KEY)) == second == home.roster()
    assert home.keep_roster(first.signed(KEY)) is None
    with pytest.raises(IdentityError, match="expected a newer one"):
        home.join(first.signed(KEY))
    with pytest.raises(IdentityError, match="signed by somebody else"):
        home.keep_roster(second.with_closed().signed(keys.new_authority("hospitals")[0]))
    other_terms = Roster("hospitals", "1" * 64, 9, second.members, second.links)
    with pytest.raises(IdentityError, match="changes what was settled"):
        home.keep_roster(other_terms.signed(KEY))
    closed = second.with_closed()
    assert home.join(closed.signed(KEY)) == closed == home.join(closed.signed(KEY))
    reopened = Roster("hospitals", TERMS.digest, 9, second.members, second.links)
    with pytest.raises(IdentityError, match="changes what was settled"):
        home.keep_roster(reopened.signed(KEY))
    others = Roster("hospitals", TERMS.digest, 9, (*second.members, member("east")), (*second.links, ("north", "east")),
                    closed=True)  # fmt: skip
    for changed in (others, Roster("hospitals", "1" * 64, 9, second.members, second.links, closed=True)):
        with pytest.raises(IdentityError, match="changes what was settled"):
            home.keep_roster(changed.signed(KEY))
    assert home.load().roster == closed
    home.keep_roster(closed.with_revoked("north").signed(KEY))
    with pytest.raises(IdentityError, match="north was revoked"):
        home.load()


def test_a_second_roster_of_one_version_is_kept_beside_the_first(home):
    home.join(invitation(home).pack())
    held = home.roster()
    other = Roster(
        "hospitals", TERMS.digest, held.version, (*held.members, member("south")), (("north", "south"),)
    )
    for take in (home.keep_roster, home.join, home.keep_roster):
        with pytest.raises(
            TwoRosters, match=r"signed two rosters of version 1 \(member south: only in the second"
        ):
            take(other.signed(KEY))
    assert home.roster() == held
    (path,) = home.folder.glob("roster-*.json")
    assert path.name == f"roster-1-{other.digest.hex()[:8]}.json"
    assert Roster.verified(path.read_bytes(), AUTHORITY) == other
    assert home.keep_roster(held.signed(KEY)) is None  # signed again, it says the same
    assert held.digest != other.digest and held.digest == replace(held).digest


def test_what_the_authority_did_not_sign_is_not_even_read(monkeypatch):
    """JSON takes longer to read than a signature to check: whoever sends junk has it read by nobody."""
    read = []
    forged = roster_of("ab").signed(keys.new_authority("hospitals")[0])
    monkeypatch.setattr("peerbayes.peer.identity.roster.json.loads", lambda text: read.append(text) or {})
    for content in (forged, forged[:-3], b"[" * 10_000, b'{"roster":{"a":1},"signature":"00"}'):
        with pytest.raises(IdentityError):
            Roster.verified(content, AUTHORITY)
    assert not read


def test_invitations_of_others_leave_a_home_as_it_was(home, tmp_path):
    home.join(invitation(home).pack())
    before = {path.name: path.read_bytes() for path in home.folder.iterdir()}
    twin = Home.create(tmp_path / "twin", "north", "north.example.org:7070", "rows.csv")
    south = Home.create(tmp_path / "south", "south", "south.example.org:7070", "rows.csv")
    key, authority = keys.new_authority("clinics")
    terms = Terms("clinics", "outcome", strategy="exact")
    certificate = keys.issue(key, authority, home.request_path.read_bytes(), "north")
    roster = Roster("clinics", terms.digest, 0, (), ()).with_member(
        Member("north", "n:1", keys.fingerprint(certificate)), ()
    )
    clinics = Invitation(
        "clinics",
        "north",
        certificate.decode(),
        authority.decode(),
        terms.to_toml(),
        roster.signed(key).decode(),
    )
    for sent, says in (
        (invitation(twin).pack(), "key does not belong"),
        (invitation(south).pack(), "is for 'south'"),
        (clinics.pack(), "another authority"),
        (b"", "neither an invitation nor"),
        (invitation(home).pack()[1:], "neither an invitation nor"),
    ):
        with pytest.raises(IdentityError, match=says):
            home.join(sent)
    assert {path.name: path.read_bytes() for path in home.folder.iterdir()} == before


def test_a_new_certificate_is_taken_though_the_roster_came_first(home):
    home.join(invitation(home).pack())
    certificate = keys.issue(KEY, AUTHORITY, home.request_path.read_bytes(), "north")
    renewed = home.roster().with_changed(
        Member("north", "north.example.org:1", keys.fingerprint(certificate))
    )
    newest = renewed.with_member(member("south"), ["north"])
    again = Invitation(
        "hospitals",
        "north",
        certificate.decode(),
        AUTHORITY.decode(),
        TERMS.to_toml(),
        renewed.signed(KEY).decode(),
    )
    old = home.certificate_path.read_bytes()
    home.keep_roster(newest.signed(KEY))
    with pytest.raises(IdentityError, match="latest invitation"):
        home.load()
    assert home.join(again.pack()) == newest
    assert home.load().roster == newest and home.load().certificate == certificate != old


def test_an_invitation_that_is_out_of_date_or_changes_what_was_settled_is_refused(home):
    """Its roster is older than the folder's and names another certificate; or newer, with other members."""
    first = invitation(home)
    home.join(first.pack())
    asked = home.request_path.read_bytes()
    certificate = keys.issue(KEY, AUTHORITY, asked, "north")
    renewed = Member("north", "north.example.org:1", keys.fingerprint(certificate))
    home.keep_roster(home.roster().with_changed(renewed).signed(KEY))
    with pytest.raises(IdentityError, match="this invitation is out of date"):
        home.join(first.pack())
    closed = home.roster().with_member(member("south"), ["north"]).with_closed()
    home.keep_roster(closed.signed(KEY))
    members = (renewed, *(member(name) for name in ("south", "east")))
    others = Roster(
        "hospitals", TERMS.digest, 9, members, (("north", "south"), ("north", "east")), closed=True
    )
    wider = invitation(home, certificate=certificate.decode(), roster=others.signed(KEY).decode())
    with pytest.raises(IdentityError, match="changes what was settled"):
        home.join(wider.pack())
    assert home.roster() == closed
    home.keep_roster(closed.with_revoked("north").signed(KEY))
    valid = invitation(home, certificate=certificate.decode(), roster=closed.signed(KEY).decode())
    with pytest.raises(IdentityError, match="this invitation is out of date"):
        home.join(valid.pack())


def test_a_changed_agreement_is_noticed(home):
    home.join(invitation(home).pack())
    home.agreement_path.write_text(Terms("hospitals", "outcome", rounds=7, strategy="exact").to_toml())
    with pytest.raises(TermsError, match="not what the members of hospitals agreed on"):
        home.load()


def test_settings(tmp_path):
    url = "postgresql://me:secret@host/db"
    home = Home.create(tmp_path / "db", "north", "[::1]:7", url, "select *\nfrom t", "127.0.0.1:8")
    assert home.settings() == Settings("north", "[::1]:7", "127.0.0.1:8", url, "select *\nfrom t")
    home = Home.create(tmp_path / "file", "north", "[::1]:7", tmp_path / "file" / "rows.csv")
    assert 'data = "rows.csv"' in home.settings_path.read_text()
    assert home.settings().listen == "[::]:7"
    moved = Home(home.folder.rename(tmp_path / "moved"))
    assert moved.settings().data == str(tmp_path / "moved" / "rows.csv")
    with pytest.raises(ValueError, match="expected a file alone") as refused:
        Home.create(tmp_path / "none", "north", "a:1", url)
    assert "secret" not in str(refused.value) and not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nme = 'a'", "line 1: 'nme' is no setting; expected one of name, address"),
        ("dates = { admitted = 'month' }", "line 1: 'dates' is no setting; expected one of name, address"),
        ("name = 'a'\naddress = 3", "line 2: address is 3"),
        ("name = 'a'\naddress = 'a:1'", "data is missing"),
        ("name = 'a'\naddress = 'a'\ndata = 'x'", "expected host:port"),
        ("name = 'a'\naddress = 'a:1'\ndata = ''", "expected a file alone"),
        ("name", "expected TOML"),
    ],
)
def test_settings_that_make_no_sense(home, text, says):
    home.settings_path.write_text(text)
    with pytest.raises(ValueError, match=says) as refused:
        home.load()
    assert str(home.settings_path) in str(refused.value)
