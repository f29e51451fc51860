"""Keys, certificates and requests as PEM: read strictly, and only those of our own kind, ECDSA on P-256."""

from __future__ import annotations

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from peerbayes.peers.errors import IdentityError

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
            certificate.extensions,
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
            f"the request of {name} cannot be read: {problem}. Expected the peer.csr that `peerbayes node request` "
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
