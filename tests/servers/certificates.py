"""Certificates for the test broker's TLS listener: an authority, a server's and a client's, created at each call."""

from __future__ import annotations

import datetime as dt
from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

__all__ = ["make_certificates"]

_DAYS = 3


def make_certificates(folder: Path, host: str = "localhost", age_days: int = 1) -> Path:
    """Write ``ca.pem``, and ``NAME.pem``, ``NAME.key`` and ``NAME-all.pem`` for server and client; returns the folder.

    They are good for `host`, and for 127.0.0.1 if that is localhost, and for three days that began `age_days` ago.
    Needs the package cryptography.
    """
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - not everybody has it
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat  # noqa: PLC0415

    folder.mkdir(mode=0o700, parents=True)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _certificate("authority", authority_key, authority_key, None, host, age_days)
    (folder / "ca.pem").write_bytes(authority.public_bytes(Encoding.PEM))
    for name in ("server", "client"):
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(name, key, authority_key, authority, host, age_days).public_bytes(Encoding.PEM)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (folder / f"{name}.pem").write_bytes(certificate)
        (folder / f"{name}.key").write_bytes(private)
        (folder / f"{name}-all.pem").write_bytes(private + certificate)
    return folder


def _certificate(
    name: str,
    key: EllipticCurvePrivateKey,
    signer: EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    host: str,
    age_days: int,
) -> x509.Certificate:
    from cryptography import x509  # noqa: PLC0415 - as above
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415

    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    begin = dt.datetime.now(dt.UTC) - dt.timedelta(days=age_days)
    builder = x509.CertificateBuilder(
        issuer_name=subject if issuer is None else issuer.subject,
        subject_name=subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=begin,
        not_valid_after=begin + dt.timedelta(days=_DAYS),
    ).add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    # Python checks these three from 3.13 on.
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    signed_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = builder.add_extension(identifier, critical=False).add_extension(signed_by, critical=False)
    if issuer is None:
        builder = builder.add_extension(_signs_certificates(), critical=True)
    addresses = [x509.IPAddress(IPv4Address("127.0.0.1"))] if host == "localhost" else []
    names = x509.SubjectAlternativeName([x509.DNSName(host), *addresses])
    return builder.add_extension(names, critical=False).sign(signer, hashes.SHA256())


def _signs_certificates() -> x509.KeyUsage:
    from cryptography import x509  # noqa: PLC0415 - as above

    return x509.KeyUsage(
        key_cert_sign=True,
        crl_sign=True,
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
