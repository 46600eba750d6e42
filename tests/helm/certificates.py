"""Issues certificates as cert-manager would for the chart's ``Certificate`` objects, with the openssl command."""

import subprocess
from pathlib import Path

from tests.helm.charts import Document

DAYS = "30"
KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def issue(folder: Path, certificate: Document) -> Path:
    """A folder with the secret of a certificate: ``ca.crt``, ``tls.crt`` and ``tls.key``."""
    folder.mkdir(parents=True)
    spec = certificate["spec"]
    authority_key = folder.with_name(f"{folder.name}-authority.key")
    _openssl(
        *("req", "-x509", *KEY, "-subj", "/CN=authority", "-days", DAYS),
        *("-addext", "basicConstraints=critical,CA:TRUE"),
        *("-keyout", str(authority_key), "-out", str(folder / "ca.crt")),
    )
    request, extensions = folder.with_name("request"), folder.with_name("extensions")
    _openssl(
        *("req", *KEY, "-subj", f"/CN={spec['commonName']}"),
        *("-keyout", str(folder / "tls.key"), "-out", str(request)),
    )
    names = ",".join(f"DNS:{name}" for name in spec["dnsNames"])
    usages = {"server auth": "serverAuth", "client auth": "clientAuth"}
    extended = ",".join(usages[usage] for usage in spec["usages"])
    extensions.write_text(
        f"subjectAltName={names}\nextendedKeyUsage={extended}\n", encoding="utf-8"
    )
    _openssl(
        *("x509", "-req", "-in", str(request), "-days", DAYS, "-extfile", str(extensions)),
        *("-CA", str(folder / "ca.crt"), "-CAkey", str(authority_key), "-CAcreateserial"),
        *("-out", str(folder / "tls.crt")),
    )
    return folder


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], capture_output=True, timeout=30, check=True)
