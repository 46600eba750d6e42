"""Create identities for test clusters: certificate authorities, certificates, and an issuer of tokens."""

import ipaddress
import json
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from jwt.algorithms import ECAlgorithm

FROM, UNTIL = datetime(2020, 1, 1, tzinfo=UTC), datetime(2120, 1, 1, tzinfo=UTC)
LOCAL: tuple[x509.GeneralName, ...] = (
    x509.DNSName("localhost"),
    x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
)


@dataclass(frozen=True)
class CertificateFiles:
    """The paths of a certificate and of its key."""

    certificate: Path
    key: Path

    def copy_to(self, other: "CertificateFiles") -> None:
        """Overwrite other files with this certificate and key, like a renewal."""
        other.certificate.write_bytes(self.certificate.read_bytes())
        other.key.write_bytes(self.key.read_bytes())


def _subject(names: Sequence[str]) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])


class Authority:
    """A certificate authority. ``file`` has its certificate; all files are in ``folder``."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._name = _subject([name])
        self._key = ec.generate_private_key(ec.SECP256R1())
        signed = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        self.file = folder / f"{name}-ca.pem"
        self.file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        file: str,
        *common_names: str,
        others: Sequence[x509.GeneralName] = LOCAL,
        usages: Sequence[x509.ObjectIdentifier] = (),
    ) -> CertificateFiles:
        """Issue a certificate with these common and alternative names, for these usages; by default for any usage."""
        key = ec.generate_private_key(ec.SECP256R1())
        # The key identifier distinguishes authorities of the same name (RFC 5280, 4.2.1.1).
        whose = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = self._builder(_subject(common_names), key).add_extension(whose, critical=False)
        if others:
            builder = builder.add_extension(x509.SubjectAlternativeName(others), critical=False)
        if usages:
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        files = CertificateFiles(self._folder / f"{file}.pem", self._folder / f"{file}.key")
        signed = builder.sign(self._key, hashes.SHA256())
        files.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return files

    def client(self, shown: CertificateFiles | None = None) -> ssl.SSLContext:
        """Return a TLS context that trusts this authority and, if ``shown`` is given, presents that certificate."""
        context = ssl.create_default_context(cafile=str(self.file))
        if shown is not None:
            context.load_cert_chain(shown.certificate, shown.key)
        return context

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(FROM)
            .not_valid_after(UNTIL)
        )


class Issuer:
    """Signs OpenID Connect tokens; ``file`` has the public key with which nodes verify them."""

    NAME, AUDIENCE = "https://issuer.example.org", "milena"
    _KEY_ID = "one"
    _ALGORITHM = "ES256"
    _LIFE_S = 24 * 3600

    def __init__(self, folder: Path) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.file = folder / "issuer.jwks"
        public = ECAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        described = {**public, "kid": self._KEY_ID, "alg": self._ALGORITHM, "use": "sig"}
        self.file.write_text(json.dumps({"keys": [described]}))

    def token(self, user: str) -> str:
        """Return a token of a user, valid for a day."""
        now_s = int(time.time())
        claims = {
            "iss": self.NAME,
            "aud": self.AUDIENCE,
            "sub": user,
            "iat": now_s,
            "exp": now_s + self._LIFE_S,
        }
        return jwt.encode(claims, self._key, self._ALGORITHM, headers={"kid": self._KEY_ID})
