"""Who is who on the wire: a certificate authority for each run, and certificates for the two roles.

Comes in: nothing. Goes out: the driver's identity and the one that all of its tasks share, as
PEM. The authority's key is gone when they are made; the driver's key never leaves the driver.
Names are fixed, whatever the hosts are called: a certificate says which role its holder has.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from weir.runtime.secret import Secret

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

CLOCK_SKEW_MAX = datetime.timedelta(days=1)
"""By how much a host's clock may be behind the driver's."""

LIFE = datetime.timedelta(days=3_650)
"""A run that takes longer than this must be started again."""


class Role(Enum):
    """What a process is to the job. Its name stands in its certificate."""

    DRIVER = "driver.weir"
    TASK = "task.weir"


@dataclass(frozen=True)
class Identity:
    """What one end of a connection shows, and whom it believes."""

    certificate: str
    key: Secret
    authority: str
    """The certificate of the run's authority: who has none from it is nobody."""


def new_identities() -> dict[Role, Identity]:
    """Those of a new run."""
    key = _new_key()
    authority = _signed("weir", None, key, key)
    return {role: _identity(role, authority, key) for role in Role}


def _identity(role: Role, authority: Certificate, authority_key: EllipticCurvePrivateKey) -> Identity:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = _new_key()
    certificate = _signed(role.value, role, key, authority_key)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Identity(_pem(certificate), Secret(secret.decode()), _pem(authority))


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _signed(
    name: str, role: Role | None, key: EllipticCurvePrivateKey, signed_by: EllipticCurvePrivateKey
) -> Certificate:
    """A certificate; without a role, the authority's own."""
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    now = datetime.datetime.now(datetime.timezone.utc)
    builder = (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named("weir"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW_MAX)
        .not_valid_after(now + LIFE)
        .add_extension(x509.BasicConstraints(ca=role is None, path_length=0 if role is None else None), critical=True)
    )
    if role is not None:
        # gRPC takes the first of these names as the identity of a caller (flight.py looks whether it may call), and
        # compares a server's with the one that the caller expects.
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(role.value)]), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    return builder.sign(signed_by, SHA256())


def _pem(certificate: Certificate) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM).decode()
