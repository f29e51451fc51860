"""Keys, certificates and signatures: what is issued is valid, and nothing else is."""

import traceback
from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("cryptography")
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given
from hypothesis import strategies as st

from peerbayes.errors import IdentityError
from peerbayes.peer.identity import keys

NOW = datetime.now(UTC)
AUTHORITY_KEY, AUTHORITY = keys.new_authority("hospitals")
KEY, REQUEST = keys.new_request("north")
CERTIFICATE = keys.issue(AUTHORITY_KEY, AUTHORITY, REQUEST, "north")


def test_a_certificate_says_who_and_what_for():
    certificate = x509.load_pem_x509_certificate(CERTIFICATE)
    extension = certificate.extensions.get_extension_for_class
    assert keys.name_of(CERTIFICATE) == "north"
    assert extension(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName) == ["north"]
    assert set(extension(x509.ExtendedKeyUsage).value) == {
        ExtendedKeyUsageOID.CLIENT_AUTH,
        ExtendedKeyUsageOID.SERVER_AUTH,
    }
    assert extension(x509.KeyUsage).value.digital_signature
    assert not extension(x509.KeyUsage).value.key_cert_sign
    assert not extension(x509.BasicConstraints).value.ca
    assert timedelta(minutes=50) < NOW - certificate.not_valid_before_utc < timedelta(minutes=70)
    assert timedelta(days=824) < keys.expiry(CERTIFICATE) - NOW < timedelta(days=826)
    der = certificate.public_bytes(serialization.Encoding.DER)
    digest = hashes.Hash(hashes.SHA256())
    digest.update(der)
    assert keys.fingerprint(CERTIFICATE) == digest.finalize().hex()


def test_an_authority_issues_to_peers_and_deputies_only():
    authority = x509.load_pem_x509_certificate(AUTHORITY)
    constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (
        constraints.ca and constraints.path_length == 1
    )  # its deputies issue to peers, and nobody below them
    assert timedelta(days=7300) < keys.expiry(AUTHORITY) - NOW
    authority.verify_directly_issued_by(authority)
    assert keys.name_of(AUTHORITY) == "hospitals"


def test_what_was_issued_is_accepted():
    keys.checked(CERTIFICATE, KEY, AUTHORITY, "north", NOW)
    keys.checked(CERTIFICATE, None, AUTHORITY, "north", NOW)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"now": NOW + timedelta(days=900)}, "expired on .* ask the founder"),
        ({"now": NOW - timedelta(days=1)}, "set the clock"),
        ({"authority_pem": keys.new_authority("hospitals")[1]}, "another authority"),
        ({"authority_pem": keys.new_authority("others")[1]}, "another authority"),
        ({"authority_pem": CERTIFICATE}, "may not issue"),
        ({"key_pem": keys.new_request("north")[0]}, "key does not belong"),
        ({"key_pem": b"no key"}, "private key cannot be read"),
        ({"name": "south"}, "is for 'north'; expected 'south'"),
        ({"certificate_pem": AUTHORITY, "name": "hospitals"}, "no readable names"),
        ({"certificate_pem": CERTIFICATE + AUTHORITY}, "more than one certificate"),
        ({"certificate_pem": b"\n" + CERTIFICATE}, "other text"),
        ({"certificate_pem": b"no certificate"}, "cannot be read"),
        ({"certificate_pem": b"x" * 100_000}, "100000 bytes"),
    ],
)
def test_what_does_not_fit_is_refused_with_advice(changes, says):
    usual = {
        "certificate_pem": CERTIFICATE, "key_pem": KEY, "authority_pem": AUTHORITY, "name": "north", "now": NOW
    }  # fmt: skip
    with pytest.raises(IdentityError, match=says):
        keys.checked(**{**usual, **changes})


def test_a_peer_cannot_issue_certificates():
    """Path length 0 and BasicConstraints: what a member signs with its own key is from another authority."""
    forged = _signed_by(KEY, x509.load_pem_x509_certificate(CERTIFICATE).subject, "south")
    with pytest.raises(IdentityError, match="another authority"):
        keys.checked(forged, None, AUTHORITY, "south", NOW)
    with pytest.raises(IdentityError, match="may not issue"):
        keys.checked(forged, None, CERTIFICATE, "south", NOW)


def test_more_names_than_one_are_refused():
    with pytest.raises(IdentityError, match="is for 'south'"):
        keys.checked(_by_authority("south", ["south", "north"]), None, AUTHORITY, "south", NOW)


def test_both_names_of_a_certificate_count():
    """TLS looks at the alternative name, links at the common name: one that differs passes for another."""
    keys.checked(_by_authority("north", ["north"]), None, AUTHORITY, "north", NOW)
    for common, others in (("south", ["north"]), ("north", ["south"]), ("north", [])):
        with pytest.raises(IdentityError, match=f"is for '{common}'; expected 'north'"):
            keys.checked(_by_authority(common, others), None, AUTHORITY, "north", NOW)


def test_a_peers_certificate_that_could_issue_others_is_refused():
    """Even if the authority signed it: its holder could let anybody in."""
    with pytest.raises(IdentityError, match="the certificate of north could issue others"):
        keys.checked(_by_authority("north", ["north"], ca=True), None, AUTHORITY, "north", NOW)


def test_no_certificate_outlives_its_authority():
    asked = keys.issue(AUTHORITY_KEY, AUTHORITY, REQUEST, "north", days=40_000)
    assert keys.expiry(asked) == keys.expiry(AUTHORITY)
    late = _by_authority("north", ["north"], days=40_000)
    after = keys.expiry(AUTHORITY) + timedelta(days=1)
    keys.checked(late, None, AUTHORITY, "north", NOW)
    with pytest.raises(IdentityError, match="the certificate of the authority expired"):
        keys.checked(late, None, AUTHORITY, "north", after)


def _by_authority(common, others, ca=False, days=1):
    """What the authority might sign by mistake."""
    issuer = x509.load_pem_x509_certificate(AUTHORITY).subject
    return _certificate(AUTHORITY_KEY, issuer, common, others, ca, days)


def _signed_by(key_pem, issuer, name):
    return _certificate(key_pem, issuer, name, [name], ca=False, days=1)


def _certificate(key_pem, issuer, common, others, ca, days):
    signer = serialization.load_pem_private_key(key_pem, None)
    certificate = (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)]))
        .public_key(ec.generate_private_key(ec.SECP256R1()).public_key())
        .serial_number(7)
        .not_valid_before(NOW - timedelta(days=1))
        .not_valid_after(NOW + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(list(map(x509.DNSName, others))), critical=False)
        .sign(signer, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)


def _request(key, *names):
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names or ("north",)])
    built = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return built.public_bytes(serialization.Encoding.PEM)


def _altered_request():
    """A request whose name was changed after it was signed."""
    der = x509.load_pem_x509_csr(REQUEST).public_bytes(serialization.Encoding.DER)
    changed = x509.load_der_x509_csr(der.replace(b"north", b"south"))
    return changed.public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize(
    ("request_pem", "name", "says"),
    [
        (REQUEST, "south", "request is of 'north'; expected one of 'south'"),
        (_altered_request(), "south", "altered on its way"),
        (b"nothing", "north", r"peer\.csr"),
        (b"x" * 100_000, "north", "100000 bytes"),
        (CERTIFICATE, "north", "cannot be read"),
        (_request(rsa.generate_private_key(65537, 2048)), "north", "expected ECDSA on P-256"),
        (_request(ec.generate_private_key(ec.SECP384R1())), "north", "expected ECDSA on P-256"),
        (_request(ec.generate_private_key(ec.SECP256R1()), "North"), "North", "lower-case"),
        (
            _request(ec.generate_private_key(ec.SECP256R1()), "north", "south"),
            "north",
            "2 names; expected one",
        ),
    ],
)
def test_requests_that_are_not_answered(request_pem, name, says):
    with pytest.raises(IdentityError, match=says):
        keys.issue(AUTHORITY_KEY, AUTHORITY, request_pem, name)


def test_an_authority_needs_its_own_key():
    with pytest.raises(IdentityError, match="does not belong"):
        keys.issue(KEY, AUTHORITY, REQUEST, "north")


@given(st.binary(max_size=200))
def test_signatures_fit_what_was_signed(content):
    signature = keys.sign(KEY, content)
    keys.verify(CERTIFICATE, signature, content)
    for wrong in (
        (CERTIFICATE, signature, content + b"."),
        (AUTHORITY, signature, content),
        (CERTIFICATE, signature[:-1], content),
        (CERTIFICATE, b"", content),
    ):
        with pytest.raises(IdentityError):
            keys.verify(*wrong)


@pytest.mark.parametrize("name", ["a", "7", "north-2", "a" * 40, "a--b"])
def test_names(name):
    assert keys.valid_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "-a", "a-", "A", "a b", "a.b", "a/b", "ä", "a" * 41, "a\n", None, 3, "../a"]
)
def test_names_that_are_refused(name):
    with pytest.raises(IdentityError, match="lower-case letters"):
        keys.valid_name(name)


def test_errors_do_not_quote_keys():
    with pytest.raises(IdentityError) as refused:
        keys.sign(KEY[:-40], b"")
    told = "".join(traceback.format_exception(refused.value))
    assert KEY.decode()[40:60] not in told
    assert told.count("Error: ") == 1  # what the library says of it may quote it


def test_keys_of_another_kind_sign_nothing():
    for key in (ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65537, 2048)):
        plain = serialization.NoEncryption()
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        with pytest.raises(IdentityError, match="of another type; expected ECDSA on P-256"):
            keys.sign(pem, b"")


@given(st.binary(max_size=300))
def test_garbage_is_refused_by_name(content):
    for call in (
        lambda: keys.fingerprint(content),
        lambda: keys.issue(AUTHORITY_KEY, AUTHORITY, content, "north"),
        lambda: keys.sign(content, b""),
        lambda: keys.checked(content, None, AUTHORITY, "north", NOW),
    ):
        with pytest.raises(IdentityError):
            call()
