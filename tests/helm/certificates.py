"""Issues certificates as cert-manager would for the chart's ``Certificate`` objects."""

from pathlib import Path

from cryptography.x509 import DNSName
from cryptography.x509.oid import ExtendedKeyUsageOID

from loadtest.bench.servers.identities import Authority, CertificateFiles
from tests.helm.charts import Document

USAGES = {
    "server auth": ExtendedKeyUsageOID.SERVER_AUTH,
    "client auth": ExtendedKeyUsageOID.CLIENT_AUTH,
}
"""By the names that cert-manager has for them."""


def issue(folder: Path, certificate: Document) -> Path:
    """A folder with the secret of a certificate: ``ca.crt``, ``tls.crt`` and ``tls.key``."""
    folder.mkdir(parents=True)
    spec = certificate["spec"]
    beside = folder.with_name(f"{folder.name}-issued")
    beside.mkdir()
    authority = Authority(beside)
    issued = authority.issue(
        "tls",
        spec["commonName"],
        others=[DNSName(name) for name in spec["dnsNames"]],
        usages=[USAGES[usage] for usage in spec["usages"]],
    )
    issued.copy_to(CertificateFiles(folder / "tls.crt", folder / "tls.key"))
    (folder / "ca.crt").write_bytes(authority.file.read_bytes())
    return folder
