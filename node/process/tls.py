"""TLS contexts from the files that the configuration names, and their renewal.

Peers authenticate each other: each shows a certificate and asks for one that the cluster's authority has signed; the
dialer also checks that the name or address it dialled stands in it. Contexts may be used from several threads.
"""

import logging
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

from milena.model.errors import StartupError
from node.config.options import NodeConfig

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTls:
    """The two ends of a peer connection."""

    server: ssl.SSLContext
    client: ssl.SSLContext


def api_tls(config: NodeConfig) -> ssl.SSLContext | None:
    """HTTPS of the API; None: plain HTTP.

    Raises:
        StartupError: a file that cannot be read or is not what it should be.
    """
    certificate, key = config.tls_cert_file, config.tls_key_file
    if certificate is None or key is None:
        return None
    context = _context(ssl.PROTOCOL_TLS_SERVER, "tls", certificate, key)
    if config.tls_client_ca_file is not None and config.client_auth != "none":
        _trust(context, "tls_client_ca_file", config.tls_client_ca_file)
        if config.client_auth == "optional":
            # One that is shown must still be good.
            context.verify_mode = ssl.CERT_OPTIONAL
    return context


def peer_tls(config: NodeConfig) -> PeerTls | None:
    """Mutual TLS between nodes; None: none.

    Raises:
        StartupError: a file that cannot be read or is not what it should be.
    """
    certificate, key = config.peer_tls_cert_file, config.peer_tls_key_file
    authority = config.peer_tls_ca_file
    if certificate is None or key is None or authority is None:
        return None
    server = _context(ssl.PROTOCOL_TLS_SERVER, "peer_tls", certificate, key)
    client = _context(ssl.PROTOCOL_TLS_CLIENT, "peer_tls", certificate, key)
    for context in (server, client):
        _trust(context, "peer_tls_ca_file", authority)
    return PeerTls(server=server, client=client)


class CertificateWatch:
    """Takes renewed certificates without a restart: new connections show them, old ones go on.

    ``maybe_reload`` is cheap, to be called now and then; it looks at the files' times and sizes.
    """

    def __init__(self, certificate: Path, key: Path, *contexts: ssl.SSLContext) -> None:
        self._certificate = certificate
        self._key = key
        self._contexts = contexts
        self._seen = self._stamp()

    def maybe_reload(self) -> bool:
        """Load the files if they changed; a pair that does not fit (half written) is tried again next time."""
        stamp = self._stamp()
        if stamp is None or stamp == self._seen:
            return False
        try:
            # A trial first: a context must not be left with a certificate and another one's key.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._certificate, self._key)
            for context in self._contexts:
                context.load_cert_chain(self._certificate, self._key)
        except OSError as error:
            log.warning("certificate not taken file=%s error=%s", self._certificate, error)
            return False
        self._seen = stamp
        log.info("certificate renewed file=%s", self._certificate)
        return True

    def _stamp(self) -> tuple[int, ...] | None:
        try:
            found = [os.stat(path) for path in (self._certificate, self._key)]
        except OSError:
            return None
        return tuple(
            value for stat in found for value in (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        )


def watches_of(
    config: NodeConfig, api: ssl.SSLContext | None, peer: PeerTls | None
) -> tuple[CertificateWatch, ...]:
    """A watch for each pair of files in use."""
    watches = []
    if api is not None and config.tls_cert_file is not None and config.tls_key_file is not None:
        watches.append(CertificateWatch(config.tls_cert_file, config.tls_key_file, api))
    if peer is not None and config.peer_tls_cert_file and config.peer_tls_key_file:
        watches.append(
            CertificateWatch(
                config.peer_tls_cert_file, config.peer_tls_key_file, peer.server, peer.client
            )
        )
    return tuple(watches)


def _context(protocol: int, name: str, certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        raise StartupError(
            f"{name}_cert_file {certificate} and {name}_key_file {key}: {error}"
        ) from error
    return context


def _trust(context: ssl.SSLContext, name: str, authority: Path) -> None:
    """Ask the other end for a certificate that the authority signed."""
    try:
        context.load_verify_locations(cafile=authority)
    except OSError as error:
        raise StartupError(f"{name} {authority}: {error}") from error
    context.verify_mode = ssl.CERT_REQUIRED
