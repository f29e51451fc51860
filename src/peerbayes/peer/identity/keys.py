"""Keys and certificates: how they are made, written, read and checked."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from peerbayes.errors import IdentityError

# --- keys, certificates and requests as PEM: read strictly, and only those of our own kind, ECDSA on P-256

ECDSA = ec.ECDSA(hashes.SHA256())  # of all signatures; made once, since each message has three

LARGEST = 64 << 10  # no certificate or request of ours has more than a few KB

UNREADABLE = (
    ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion, x509.DuplicateExtension, x509.ExtensionNotFound,
    x509.UnsupportedGeneralNameType,
)  # fmt: skip


def certificate_of(pem: bytes, whose: str = "the") -> x509.Certificate:
    """Read one certificate and nothing else: every later reader of the file must see the same."""
    try:
        if len(pem) > LARGEST:
            raise ValueError(f"it has {len(pem)} bytes")
        certificate = x509.load_pem_x509_certificate(pem)
        if certificate.public_bytes(serialization.Encoding.PEM) != pem:
            raise ValueError("there is more than one certificate in it, or other text")
        p256(certificate.public_key())
        _ = (
            certificate.subject,
            certificate.issuer,
            certificate.extensions,
            certificate.not_valid_before_utc,
            certificate.not_valid_after_utc,
        )  # else parsed when used
    except UNREADABLE as problem:
        raise IdentityError(
            f"{whose} certificate cannot be read: {problem}. Expected one in PEM; get it again from its origin"
        ) from problem
    return certificate


def requested_key(pem: bytes, name: str) -> ec.EllipticCurvePublicKey:
    """Return the public key of a certificate request, once its signature and name are verified."""
    try:
        if len(pem) > LARGEST:
            raise ValueError(f"it has {len(pem)} bytes")
        request = x509.load_pem_x509_csr(pem)
        genuine, key, subject = request.is_signature_valid, request.public_key(), request.subject
    except UNREADABLE as problem:
        raise IdentityError(
            f"the request of {name} cannot be read: {problem}. Expected the peer.csr that `peerbayes peer request` "
            "wrote"
        ) from problem
    if not genuine:
        raise IdentityError(
            f"the request of {name} was altered on its way: its signature does not fit; send it again"
        )
    requested_name = common_name(subject, "the request")
    if requested_name != name:
        raise IdentityError(
            f"the request is of {requested_name!r:.80}; expected one of {name!r}: is it another peer's?"
        )
    return p256(key)


def private_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except UNREADABLE:
        # Without the cause: it may quote the key.
        raise IdentityError("the private key cannot be read; expected the PEM that peerbayes wrote") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise IdentityError(
            "the private key is of another type; expected ECDSA on P-256, as peerbayes creates it"
        )
    return key


def p256(key: object) -> ec.EllipticCurvePublicKey:
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise IdentityError(
            f"the key is a {type(key).__name__}; expected ECDSA on P-256, as peerbayes creates it"
        )
    return key


def public_bytes(key: object) -> bytes:
    return p256(key).public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def pem_of(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def common_name(subject: x509.Name, source: str) -> str:
    names = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(names) != 1 or not isinstance(names[0].value, str):
        raise IdentityError(f"{source} has {len(names)} names; expected one")
    return names[0].value


# --- the identity of a peer: keys, certificates of the network's own authority, signatures. ECDSA on P-256 throughout
# The authority is a key and a self-signed certificate; it issues a certificate for each member's request, so that a
# member's private key never leaves its machine. PEM in, PEM out.

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
DEPUTY = "peerbayes deputy"  # the organization in a deputy's certificate: a member's own has none
AUTHORITY_DAYS = 7305  # 20 years: a network's authority outlives its certificates
DAYS = 825  # of a member's certificate; it is renewed before it ends
EARLIER = timedelta(hours=1)  # clocks differ: a certificate is valid a little before it was made


def valid_name(name: str) -> str:
    """Return the name if it is a valid DNS label; IdentityError otherwise."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise IdentityError(
            f"the name is {name!r:.80}; expected 1 to 40 lower-case letters, digits and '-', with no '-' at either end"
        )
    return name


def new_authority(network: str) -> tuple[bytes, bytes]:
    """Return the key of a new authority, and its certificate."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "peerbayes"), _common_name(network)])
    certificate = (
        _builder(subject, subject, key.public_key(), now, now + timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=1), critical=True)  # 1: for deputies
        .add_extension(_usage(certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return pem_of(key), certificate.public_bytes(serialization.Encoding.PEM)


def new_request(name: str) -> tuple[bytes, bytes]:
    """Return the key of a new peer, and its certificate request."""
    key = pem_of(ec.generate_private_key(ec.SECP256R1()))
    return key, request_of(key, name)


def request_of(key: bytes, name: str) -> bytes:
    """Return a certificate request for a key that exists."""
    subject = x509.Name([_common_name(valid_name(name))])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return builder.sign(private_key(key), hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def deputy_certificate(
    authority_key: bytes, authority_certificate: bytes, member: bytes, now: datetime | None = None
) -> bytes:
    """Return a certificate with which the key of a member's certificate may renew others, until the authority's end.

    It signs certificates and nothing else: TLS takes it for no peer's.
    """
    signer, authority = _signer(authority_key, authority_certificate)
    if _constraints(authority).path_length == 0:
        raise IdentityError(
            "the certificate of this network's authority is of an earlier version, and allows no deputies; renew "
            "with the authority itself: `peerbayes network renew`, or `renews` in the peer.toml of the founder's peer"
        )
    certificate = certificate_of(member)
    name, now = common_name(certificate.subject, "the certificate"), now or datetime.now(UTC)
    organization = x509.NameAttribute(NameOID.ORGANIZATION_NAME, DEPUTY)
    subject = x509.Name([organization, _common_name(valid_name(name))])
    builder = _builder(
        authority.subject, subject, p256(certificate.public_key()), now, authority.not_valid_after_utc
    )
    signed = (
        builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(certificates=True, handshakes=False), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        .sign(signer, hashes.SHA256())
    )
    return signed.public_bytes(serialization.Encoding.PEM)


def issue(
    issuer_key: bytes,
    issuer_certificate: bytes,
    request: bytes,
    name: str,
    days: float = DAYS,
    now: datetime | None = None,
) -> bytes:
    """Return the certificate for a request, once the requester's name and signature are verified.

    The issuer is the authority, or one of its deputies.
    """
    return _issued(issuer_key, issuer_certificate, requested_key(request, valid_name(name)), name, days, now)


def reissue(
    issuer_key: bytes,
    issuer_certificate: bytes,
    current: bytes,
    days: float = DAYS,
    now: datetime | None = None,
) -> bytes:
    """Return a new certificate for the name and the key of a current one."""
    certificate = certificate_of(current)
    name = common_name(certificate.subject, "the certificate")
    return _issued(issuer_key, issuer_certificate, p256(certificate.public_key()), name, days, now)


def _issued(
    issuer_key: bytes,
    issuer_certificate: bytes,
    public_key: ec.EllipticCurvePublicKey,
    name: str,
    days: float,
    now: datetime | None,
) -> bytes:
    signer, authority = _signer(issuer_key, issuer_certificate)
    now = now or datetime.now(UTC)
    end = min(now + timedelta(days=days), authority.not_valid_after_utc)
    certificate = (
        _builder(authority.subject, x509.Name([_common_name(name)]), public_key, now, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]),
            critical=False,
        )
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        .sign(signer, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)


def _signer(
    issuer_key: bytes, issuer_certificate: bytes
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    signer, issuer = private_key(issuer_key), certificate_of(issuer_certificate, "the authority's")
    if public_bytes(signer.public_key()) != public_bytes(issuer.public_key()):
        raise IdentityError(
            "the authority's key does not belong to its certificate; use those of one network"
        )
    return signer, issuer


def key_digest(certificate_pem: bytes) -> str:
    """Return the SHA-256 of the certificate's public key: it stays when the certificate is renewed."""
    return hashlib.sha256(public_bytes(certificate_of(certificate_pem).public_key())).hexdigest()


def requested_digest(request_pem: bytes, name: str) -> str:
    """Return the SHA-256 of the public key of a certificate request."""
    return hashlib.sha256(public_bytes(requested_key(request_pem, name))).hexdigest()


def fingerprint(certificate_pem: bytes) -> str:
    """Return the SHA-256 of the certificate."""
    return certificate_of(certificate_pem).fingerprint(hashes.SHA256()).hex()


def expiry(certificate_pem: bytes) -> datetime:
    """Return when the certificate expires."""
    return certificate_of(certificate_pem).not_valid_after_utc


def name_of(certificate_pem: bytes) -> str:
    """Return the common name of a certificate: a peer's name, or an authority's network."""
    return common_name(certificate_of(certificate_pem).subject, "the certificate")


def validity(certificate_pem: bytes) -> tuple[datetime, datetime]:
    """Return from when to when a certificate is valid."""
    certificate = certificate_of(certificate_pem)
    return certificate.not_valid_before_utc, certificate.not_valid_after_utc


def issuer_of(certificate_pem: bytes, issuers: Iterable[bytes]) -> bytes | None:
    """Return which of these certificates issued another one; None: none of them."""
    certificate = certificate_of(certificate_pem)
    for issuer_pem in issuers:
        issuer = certificate_of(issuer_pem, "the authority's")
        try:
            if certificate.issuer != issuer.subject or not _constraints(issuer).ca:
                continue
            certificate.verify_directly_issued_by(issuer)
        except (*UNREADABLE, InvalidSignature):
            continue
        return issuer_pem
    return None


def deputy_name(deputy_pem: bytes, authority_pem: bytes) -> str:
    """Return whose deputy certificate this is; refuse one that the authority did not issue, or that may do more."""
    certificate = certificate_of(deputy_pem, "a deputy's")
    name = common_name(certificate.subject, "a deputy's certificate")
    organizations = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    constraints, usage = _constraints(certificate), _key_usage(certificate)
    if (
        [each.value for each in organizations] != [DEPUTY]
        or not constraints.ca
        or constraints.path_length != 0
    ):
        raise IdentityError(
            f"the certificate of {name:.80} is no deputy's; name it with `peerbayes network deputy`"
        )
    if usage.digital_signature or not usage.key_cert_sign:
        raise IdentityError(
            f"the deputy certificate of {name:.80} may do more than sign certificates; make a new one"
        )
    if issuer_of(deputy_pem, [authority_pem]) is None:
        raise IdentityError(f"the deputy certificate of {name:.80} is not from this network's authority")
    return valid_name(name)


def issued(certificate_pem: bytes, authority_pem: bytes, name: str, deputies: Iterable[bytes] = ()) -> None:
    """Refuse a certificate that neither this authority nor one of its deputies issued to this peer."""
    certificate, authority = certificate_of(certificate_pem), certificate_of(authority_pem, "the authority's")
    if not _constraints(authority).ca:
        raise IdentityError(
            "the authority's certificate may not issue others; expected `network new`'s authority.crt"
        )
    if issuer_of(certificate_pem, [authority_pem, *deputies]) is None:
        raise IdentityError(
            f"the certificate of {name} is from another authority than this network's, or altered; "
            "ask the founder for an invitation of this network"
        )
    subject_name = common_name(certificate.subject, "the certificate")
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        dns_names = extension.get_values_for_type(x509.DNSName)
    except UNREADABLE as problem:
        raise IdentityError(
            f"the certificate of {subject_name} has no readable names: {problem}"
        ) from problem
    if subject_name != name or dns_names != [name]:
        raise IdentityError(
            f"the certificate is for {subject_name!r:.80}; expected {name!r}: is this another peer's?"
        )
    if _constraints(certificate).ca:
        raise IdentityError(
            f"the certificate of {name} could issue others, which a peer's must not: ask for a new one"
        )


def checked(
    certificate_pem: bytes,
    key_pem: bytes | None,
    authority_pem: bytes,
    name: str,
    now: datetime,
    deputies: Iterable[bytes] = (),
) -> None:
    """Refuse a certificate that is not this peer's, not this network's, or not valid now."""
    issued(certificate_pem, authority_pem, name, deputies)
    certificate = certificate_of(certificate_pem)
    for presented, owner in ((certificate, name), (certificate_of(authority_pem), "the authority")):
        if now > presented.not_valid_after_utc:
            raise IdentityError(
                f"the certificate of {owner} expired on {presented.not_valid_after_utc:%Y-%m-%d}, and this machine's "
                f"clock says {now:%Y-%m-%d %H:%M}; if the clock is right, ask the founder for a new one "
                "(`peerbayes network renew`), and join with it"
            )
        if now < presented.not_valid_before_utc:
            raise IdentityError(
                f"the certificate of {owner} is valid from {presented.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on, and "
                f"this machine's clock says {now:%Y-%m-%d %H:%M}; set the clock"
            )
    if key_pem is not None and public_bytes(private_key(key_pem).public_key()) != public_bytes(
        certificate.public_key()
    ):
        raise IdentityError(
            f"the key does not belong to the certificate of {name}; expected the key whose request was answered: "
            "send the founder the request of this folder"
        )


def sign(key_pem: bytes, content: bytes) -> bytes:
    """Return a signature of the content."""
    return signing(key_pem)(content)


def signing(key_pem: bytes) -> Callable[[bytes], bytes]:
    """Return a function that signs with a key, which is parsed once: that takes as long as signing."""
    key = private_key(key_pem)
    return lambda content: key.sign(content, ECDSA)


def verify(certificate_pem: bytes, signature: bytes, content: bytes) -> None:
    """Refuse a signature that the certificate's owner did not make."""
    verifying(certificate_pem)(signature, content)


def verifying(certificate_pem: bytes) -> Callable[[bytes, bytes], None]:
    """Return a function (signature, content) that refuses a signature that the certificate's owner did not make."""
    key = p256(certificate_of(certificate_pem).public_key())

    def refuse(signature: bytes, content: bytes) -> None:
        try:
            key.verify(signature, content, ECDSA)
        except InvalidSignature as problem:
            raise IdentityError(
                "the signature does not match: the content was altered, or signed by somebody else; "
                "get it again from its origin"
            ) from problem

    return refuse


def _builder(
    issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(certificates: bool, handshakes: bool = True) -> x509.KeyUsage:
    """Return the key usage: a peer's key signs handshakes; an authority's also certificates (and rosters)."""
    return x509.KeyUsage(
        digital_signature=handshakes, key_cert_sign=certificates, crl_sign=certificates, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
        decipher_only=False,
    )  # fmt: skip


def _common_name(name: str) -> x509.NameAttribute[str]:
    return x509.NameAttribute(NameOID.COMMON_NAME, name)


def _key_usage(certificate: x509.Certificate) -> x509.KeyUsage:
    try:
        return certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    except UNREADABLE as problem:
        raise IdentityError(
            f"a certificate does not say what its key is for: {problem}; get a new one"
        ) from problem


def _constraints(certificate: x509.Certificate) -> x509.BasicConstraints:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except UNREADABLE as problem:
        raise IdentityError(
            f"a certificate does not say what it is for: {problem}; get a new one"
        ) from problem
