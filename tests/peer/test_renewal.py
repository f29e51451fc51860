"""Renewed certificates: the same name and the same key, from the authority or a deputy, and nothing else."""

import contextlib
import socket
import ssl
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("msgspec")
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from peerbayes.errors import ConfigurationError, IdentityError
from peerbayes.peer.agreement.terms import Terms
from peerbayes.peer.identity import keys
from peerbayes.peer.identity.founder import Founder
from peerbayes.peer.identity.renewal import Issuer, due_at, overdue_at
from peerbayes.peer.identity.roster import Deputy, Member, Roster
from peerbayes.peer.state.folder import Home
from shared.commands import HANG


def now():
    """Return the time: certificates begin when a test makes them, which may be long after the tests were collected."""
    return datetime.now(UTC)


NAMES = ("north", "south", "west")


@pytest.fixture
def hospitals(tmp_path):
    """A network of three that is closed, with south as a deputy."""
    founder = Founder.create(tmp_path / "network", Terms("hospitals", "y", strategy="exact").to_toml())
    homes = {}
    for number, name in enumerate(NAMES):
        home = homes[name] = Home.create(tmp_path / name, name, f"{name}.example:{7000 + number}", "rows.csv")
        home.join(
            founder.invite(name, home.request_path.read_bytes(), f"{name}.example:{7000 + number}").pack()
        )
    founder.close()
    founder.name_deputy("south")
    for home in homes.values():
        home.join(founder.roster_path.read_bytes())
    return SimpleNamespace(
        founder=founder, homes=homes, roster=founder.roster(), authority=founder.authority()
    )


def deputy_of(hospitals, name="south"):
    home = hospitals.homes[name]
    return Issuer.of(home.folder, hospitals.roster, name, home.key_path.read_bytes())


def request_of(hospitals, name="north"):
    return keys.request_of(hospitals.homes[name].key_path.read_bytes(), name)


def test_a_deputy_renews_a_certificate_and_nobody_needs_a_new_roster_or_key(hospitals):
    home, roster = hospitals.homes["north"], hospitals.roster
    key, before = home.key_path.read_bytes(), home.certificate_path.read_bytes()
    later = now() + timedelta(days=800)
    renewed = deputy_of(hospitals).renewed(request_of(hospitals), "north", roster, later)
    member = roster.member("north")
    assert keys.fingerprint(renewed) != member.certificate and keys.key_digest(renewed) == member.key
    assert member.accepts(renewed, roster.issuers(hospitals.authority), later)
    home.renew(renewed, later)
    peer = home.load(later)
    assert peer.certificate == renewed != before and peer.key == key and peer.roster == roster
    end = before_end = keys.expiry(before)
    end = keys.expiry(renewed)
    assert end - before_end > timedelta(days=700)
    assert home.load(before_end + timedelta(days=10)).certificate == renewed  # the old one has ended by then


def test_the_authority_renews_as_well_and_its_certificates_need_no_chain(hospitals):
    roster, home = hospitals.roster, hospitals.homes["north"]
    issuer = Issuer.of(hospitals.founder.folder, roster)
    renewed = issuer.renewed(request_of(hospitals), "north", roster, now() + timedelta(days=800))
    home.renew(renewed, now() + timedelta(days=800))
    assert roster.chain(renewed) == b"" and roster.chain(home.certificate_path.read_bytes()) == b""
    by_deputy = deputy_of(hospitals).renewed(request_of(hospitals), "north", roster)
    assert roster.chain(by_deputy) == roster.deputies[0].certificate.encode()


def test_who_asks_again_gets_the_same_certificate_until_that_is_due(hospitals):
    issuer, request = deputy_of(hospitals), request_of(hospitals)
    first = issuer.renewed(request, "north", hospitals.roster, now())
    assert issuer.renewed(request, "north", hospitals.roster, now() + timedelta(days=5)) == first
    due = due_at(first)
    assert timedelta(days=30) <= keys.expiry(first) - due <= timedelta(days=60)
    assert issuer.renewed(request, "north", hospitals.roster, due + timedelta(seconds=1)) != first


def test_certificates_of_one_day_are_renewed_at_different_times_and_short_ones_in_their_last_third():
    key, authority = keys.new_authority("many")
    shares = []
    for number in range(60):
        _, request = keys.new_request(f"m{number}")
        certificate = keys.issue(key, authority, request, f"m{number}", 1.0, now())
        begin, end = keys.validity(certificate)
        shares.append((end - due_at(certificate)) / (end - begin))
        assert due_at(certificate) <= overdue_at(certificate) < end
    assert 1 / 6 <= min(shares) < 0.2 and 0.3 < max(shares) <= 1 / 3


# --- what is not renewed, and not accepted ---------------------------------------------------------------


def forged(hospitals, signer, issuer, public, name, **changes):
    """A certificate with whatever is asked for, correctly signed by a key."""
    begin, end = changes.get("valid", (now() - timedelta(days=1), now() + timedelta(days=900)))
    issuer = keys.certificate_of(issuer)
    builder = (
        x509.CertificateBuilder()
        .issuer_name(issuer.subject)
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]))
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(changes.get("ca", False), None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(changes.get("dns", name))]), critical=False)
    )
    signed = builder.sign(keys.private_key(signer), hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM)


def test_forged_renewals_are_refused_whoever_signed_them(hospitals):
    roster, authority = hospitals.roster, hospitals.authority
    home, south = hospitals.homes["north"], hospitals.homes["south"].key_path.read_bytes()
    west = hospitals.homes["west"]
    deputy, own = roster.deputies[0].certificate.encode(), keys.private_key(home.key_path.read_bytes())
    other = ec.generate_private_key(ec.SECP256R1()).public_key()
    long_ago = now() - timedelta(days=900), now() - timedelta(days=1)
    cases = {
        "another key": forged(hospitals, south, deputy, other, "north"),
        "the deputy's own key": forged(hospitals, south, deputy, keys.private_key(south).public_key(), "north"),
        "another name": forged(hospitals, south, deputy, own.public_key(), "west"),
        "a second name": forged(hospitals, south, deputy, own.public_key(), "north", dns="west"),
        "may issue": forged(hospitals, south, deputy, own.public_key(), "north", ca=True),
        "ended": forged(hospitals, south, deputy, own.public_key(), "north", valid=long_ago),
        "not begun": forged(hospitals, south, deputy, own.public_key(), "north",
                            valid=(now() + timedelta(days=1), now() + timedelta(days=9))),
        "no deputy": forged(hospitals, west.key_path.read_bytes(), west.certificate_path.read_bytes(),
                            own.public_key(), "north"),
        "the name of a deputy": forged(hospitals, west.key_path.read_bytes(), deputy, own.public_key(), "north"),
        "itself": forged(hospitals, home.key_path.read_bytes(), home.certificate_path.read_bytes(),
                         own.public_key(), "north"),
    }  # fmt: skip
    before = home.certificate_path.read_bytes()
    for case, certificate in cases.items():
        assert not roster.member("north").accepts(certificate, roster.issuers(authority), now()), case
        with pytest.raises(IdentityError):
            home.renew(certificate, now())
        with pytest.raises(IdentityError):
            home.join(certificate)
    assert home.certificate_path.read_bytes() == before
    good = forged(hospitals, south, deputy, own.public_key(), "north")
    assert roster.member("north").accepts(good, roster.issuers(authority), now())
    assert not roster.member("north").accepts(good, [authority], now())
    assert not roster.member("west").accepts(good, roster.issuers(authority), now())
    home.renew(good, now())


def test_a_deputy_that_is_dismissed_or_revoked_counts_no_more(hospitals):
    renewed = deputy_of(hospitals).renewed(request_of(hospitals), "north", hospitals.roster)
    member = hospitals.roster.member("north")
    assert member.accepts(renewed, hospitals.roster.issuers(hospitals.authority))
    dismissed = hospitals.founder.dismiss_deputy("south")
    assert not member.accepts(renewed, dismissed.issuers(hospitals.authority))
    with pytest.raises(ConfigurationError, match="no deputy in roster"):
        Issuer.of(
            hospitals.homes["south"].folder,
            dismissed,
            "south",
            hospitals.homes["south"].key_path.read_bytes(),
        )
    with pytest.raises(IdentityError, match="'south' is no deputy of hospitals; expected one of nobody"):
        hospitals.founder.dismiss_deputy("south")
    hospitals.founder.name_deputy("south")
    revoked = hospitals.founder.revoke("south")
    assert revoked.deputies == () and not member.accepts(renewed, revoked.issuers(hospitals.authority))
    with pytest.raises(IdentityError, match="was revoked"):
        hospitals.founder.name_deputy("south")


def test_a_member_that_keeps_a_certificate_of_a_dismissed_deputy_is_told_what_to_do(hospitals):
    home = hospitals.homes["north"]
    home.renew(
        deputy_of(hospitals).renewed(
            request_of(hospitals), "north", hospitals.roster, now() + timedelta(minutes=30)
        )
    )
    hospitals.founder.dismiss_deputy("south")
    home.join(hospitals.founder.roster_path.read_bytes())
    with pytest.raises(IdentityError, match="from another authority than this network's"):
        home.load()
    home.join(hospitals.founder.renew(["north"])["north"])
    assert home.load().name == "north"


def test_only_members_with_the_key_of_the_roster_get_a_renewal(hospitals):
    issuer, roster = deputy_of(hospitals), hospitals.roster
    with pytest.raises(IdentityError, match="for another key than the one of north"):
        issuer.renewed(keys.new_request("north")[1], "north", roster)
    with pytest.raises(IdentityError, match="the request is of 'north'"):
        issuer.renewed(request_of(hospitals), "west", roster)
    with pytest.raises(IdentityError, match="no member of hospitals"):
        issuer.renewed(keys.new_request("east")[1], "east", roster)
    with pytest.raises(IdentityError, match="north was revoked"):
        issuer.renewed(request_of(hospitals), "north", hospitals.founder.revoke("north"))
    nameless = replace(roster, members=tuple(replace(m, key="") for m in roster.members), deputies=())
    with pytest.raises(IdentityError, match="no key of north"):
        issuer.renewed(request_of(hospitals), "north", nameless)


def test_a_new_key_ends_what_a_deputy_renewed_and_a_deputy_with_a_new_key_is_none(hospitals):
    renewed = deputy_of(hospitals).renewed(request_of(hospitals), "north", hospitals.roster)
    for name in ("north", "south"):
        hospitals.founder.invite(name, keys.new_request(name)[1], f"{name}.example:7070", again=True)
    roster = hospitals.founder.roster()
    assert roster.deputies == ()
    assert not roster.member("north").accepts(renewed, hospitals.roster.issuers(hospitals.authority))


# --- rosters ---------------------------------------------------------------------------------------------


def test_rosters_of_earlier_versions_keep_their_text_and_their_keys_are_added_by_a_renewal(hospitals):
    founder = hospitals.founder
    old = replace(
        hospitals.roster, members=tuple(replace(m, key="") for m in hospitals.roster.members), deputies=()
    )
    assert b'"key"' not in old.to_json() and b"deputies" not in old.to_json()
    founder.roster_path.write_bytes(old.signed(founder.key_path.read_bytes()))
    home = hospitals.homes["north"]
    home.roster_path.write_bytes(founder.roster_path.read_bytes())
    assert home.load().roster == old and old.member("north").accepts(home.certificate_path.read_bytes())
    renewed = founder.renew()
    assert set(renewed) == set(NAMES)
    filled = founder.roster()
    assert filled.version == old.version + 1 and filled.run == old.run
    assert filled.member("north").key == keys.key_digest(renewed["north"])
    with pytest.raises(IdentityError, match="join with the newest roster"):
        home.join(renewed["north"])
    home.join(founder.roster_path.read_bytes())
    home.join(renewed["north"])
    assert home.load().certificate == renewed["north"]


def test_deputies_in_a_roster_are_the_authority_s_own_and_of_members_keys(hospitals):
    founder, roster = hospitals.founder, hospitals.roster
    key, deputy = founder.key_path.read_bytes(), roster.deputies[0]
    other_key, other_authority = keys.new_authority("hospitals")
    south = hospitals.homes["south"].certificate_path.read_bytes()
    foreign = keys.deputy_certificate(other_key, other_authority, south).decode()
    for deputies, says in (
        ((Deputy("north", deputy.certificate),), "for another key than its own"),
        ((deputy, deputy), "in the roster twice"),
        ((Deputy("east", deputy.certificate),), "no member"),
    ):
        with pytest.raises(IdentityError, match=says):
            replace(roster, deputies=deputies)
    for certificate, says in (
        (foreign, "not from this network's authority"),
        (south.decode(), "has 0 organizations|no deputy's"),
    ):
        signed = replace(roster, deputies=(Deputy("south", certificate),)).signed(key)
        with pytest.raises(IdentityError, match=says):
            Roster.verified(signed, hospitals.authority)


def test_an_authority_of_an_earlier_version_allows_no_deputies_and_says_what_to_do(hospitals, monkeypatch):
    key, authority = hospitals.founder.key_path.read_bytes(), hospitals.authority
    constrained = x509.BasicConstraints(ca=True, path_length=0)
    monkeypatch.setattr(keys, "_constraints", lambda certificate: constrained)
    with pytest.raises(IdentityError, match="allows no deputies; renew with the authority itself"):
        keys.deputy_certificate(key, authority, hospitals.homes["south"].certificate_path.read_bytes())


def test_differences_name_keys_and_deputies(hospitals):
    founder = hospitals.founder
    assert any("deputy" in line for line in hospitals.roster.differences(founder.dismiss_deputy("south")))
    founder.invite("north", keys.new_request("north")[1], "north.example:7070", again=True)
    assert any(line.startswith("key of north: ") for line in hospitals.roster.differences(founder.roster()))


def test_members_are_compared_by_their_certificates_where_they_have_no_key():
    key, authority = keys.new_authority("few")
    certificate = keys.issue(key, authority, keys.new_request("a")[1], "a")
    member = Member("a", "a:1", keys.fingerprint(certificate))
    assert member.accepts(certificate)
    again = keys.reissue(key, authority, certificate)
    assert not member.accepts(again, [authority])
    assert replace(member, key=keys.key_digest(again)).accepts(again, [authority])
    assert not replace(member, key=keys.key_digest(again)).accepts(again)  # nobody may renew it


# --- TLS -------------------------------------------------------------------------------------------------


def context(side, folder, authority, certificate, key):
    """A TLS 1.3 context that shows a certificate (with its chain) and wants one of the authority."""
    folder.mkdir()
    (folder / "shown.pem").write_bytes(certificate)
    (folder / "key.pem").write_bytes(key)
    made = ssl.SSLContext(side)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.load_verify_locations(cadata=authority.decode())
    made.load_cert_chain(folder / "shown.pem", folder / "key.pem")
    made.verify_mode = ssl.CERT_REQUIRED
    return made


def handshake(server, client, name):
    """The name in the certificate that each end has seen; SSLError where a handshake fails."""
    ours, theirs = socket.socketpair()
    seen, failed = [], []

    def serve():
        try:
            with server.wrap_socket(ours, server_side=True) as connection:
                seen.append(connection.getpeercert())
                connection.sendall(b"!")
        except (ssl.SSLError, OSError) as error:
            failed.append(error)
        finally:
            ours.close()

    thread = threading.Thread(target=serve)
    thread.start()
    with contextlib.closing(theirs):
        theirs.settimeout(HANG)
        try:
            with client.wrap_socket(theirs, server_hostname=name) as connection:
                seen.append(connection.getpeercert())
                if connection.recv(1) != b"!":
                    raise ssl.SSLError("nothing came")
        finally:
            thread.join(HANG)
    if failed:
        raise failed[0]
    return {dict(item[0] for item in each["subject"])["commonName"] for each in seen}


def test_a_handshake_takes_renewed_certificates_with_their_chain(hospitals, tmp_path):
    roster, authority = hospitals.roster, hospitals.authority

    def shown(side, name, certificate, folder):
        key = hospitals.homes[name].key_path.read_bytes()
        return context(side, tmp_path / folder, authority, certificate, key)

    renewed = {
        name: deputy_of(hospitals).renewed(request_of(hospitals, name), name, roster)
        for name in ("north", "west")
    }
    chains = {name: each + roster.chain(each) for name, each in renewed.items()}
    server = shown(ssl.PROTOCOL_TLS_SERVER, "west", chains["west"], "server")
    client = shown(ssl.PROTOCOL_TLS_CLIENT, "north", chains["north"], "client")
    assert handshake(server, client, "west") == {"north", "west"}
    bare = shown(ssl.PROTOCOL_TLS_CLIENT, "north", renewed["north"], "bare")
    with pytest.raises((ssl.SSLError, OSError)):
        handshake(server, bare, "west")


def test_a_deputy_s_own_certificate_passes_for_nobody_in_a_handshake(hospitals, tmp_path):
    key = hospitals.homes["south"].key_path.read_bytes()
    deputy = hospitals.roster.deputies[0].certificate.encode()
    server = context(
        ssl.PROTOCOL_TLS_SERVER, tmp_path / "server", hospitals.authority,
        hospitals.homes["west"].certificate_path.read_bytes(), hospitals.homes["west"].key_path.read_bytes(),
    )  # fmt: skip
    client = context(ssl.PROTOCOL_TLS_CLIENT, tmp_path / "client", hospitals.authority, deputy, key)
    with pytest.raises((ssl.SSLError, OSError)):
        handshake(server, client, "west")


def test_a_handshake_refuses_a_certificate_that_has_ended(hospitals, tmp_path):
    issuer, past = deputy_of(hospitals), now() - timedelta(days=2)
    ended = issuer.renewed(request_of(hospitals), "north", hospitals.roster, past, days=1.0)
    assert keys.expiry(ended) < now()
    west, north = hospitals.homes["west"], hospitals.homes["north"]
    server = context(ssl.PROTOCOL_TLS_SERVER, tmp_path / "server", hospitals.authority,
                     west.certificate_path.read_bytes(), west.key_path.read_bytes())  # fmt: skip
    client = context(ssl.PROTOCOL_TLS_CLIENT, tmp_path / "client", hospitals.authority,
                     ended + hospitals.roster.chain(ended), north.key_path.read_bytes())  # fmt: skip
    with pytest.raises((ssl.SSLError, OSError)):
        handshake(server, client, "west")
