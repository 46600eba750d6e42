"""The certificate that a client presented on connection, after TLS verified it."""

import asyncio
import hashlib
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

_SUBJECT_NAME = "commonName"
_OTHER_NAMES = {"DNS": "DNS", "URI": "URI", "email": "EMAIL"}


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """The parts of a certificate that identify its holder."""

    digest: bytes
    """SHA-256, unique to the certificate."""
    names: tuple[str, ...]
    """The certificate's names, each with a prefix: ``CN:`` (common name), or ``DNS:``, ``URI:``, ``EMAIL:``."""
    expires_ms: int
    """When the certificate expires (wall ms)."""


def certificate_of(transport: asyncio.BaseTransport) -> ClientCertificate | None:
    """Return the certificate of a connection's client; None if the client presented none."""
    tls = transport.get_extra_info("ssl_object")
    if tls is None:
        return None
    # ``getpeercert`` returns an empty result for a certificate that TLS did not verify.
    shown = cast("Mapping[str, object] | None", tls.getpeercert())
    raw = cast("bytes | None", tls.getpeercert(binary_form=True))
    if not shown or not raw:
        return None
    return ClientCertificate(
        digest=hashlib.sha256(raw).digest(),
        names=tuple(_names(shown)),
        expires_ms=int(ssl.cert_time_to_seconds(str(shown["notAfter"])) * 1000),
    )


def _names(shown: Mapping[str, object]) -> Iterator[str]:
    for parts in cast("tuple[tuple[tuple[str, str], ...], ...]", shown.get("subject", ())):
        for kind, value in parts:
            if kind == _SUBJECT_NAME:
                yield f"CN:{value}"
    for kind, value in cast("tuple[tuple[str, str], ...]", shown.get("subjectAltName", ())):
        if kind in _OTHER_NAMES:
            yield f"{_OTHER_NAMES[kind]}:{value}"
