"""Makes TLS contexts from the files that the configuration names, and renews them.

Peers authenticate each other: each shows a certificate, and requires one that the cluster's authority has signed. The
dialer also checks that the certificate has the name or address that it dialled. Several threads may use one context.
"""

import logging
import os
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from milena.model.errors import StartupError
from node.config.options import NodeConfig

log = logging.getLogger(__name__)

_Value = TypeVar("_Value")


_SENTENCE = (
    b'{"error_code":400,"message":"This port speaks TLS: use https:// in place of http://."}'
)
PLAIN_HTTP_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s\n" % (len(_SENTENCE) + 1, _SENTENCE)
)
"""The response to a request of plain HTTP on a port with TLS. Without it, the client only sees a closed connection."""


class AnsweringObject(ssl.SSLObject):
    """The node's end of an API connection. It answers plain HTTP once, in plain text; the handshake has failed then."""

    outgoing: ssl.MemoryBIO | None = None

    def do_handshake(self) -> None:
        """Continue the handshake. If a plain response must be sent first, ask for more input, as before any send."""
        try:
            super().do_handshake()
        except ssl.SSLError as error:
            if error.reason != "HTTP_REQUEST" or self.outgoing is None:
                raise
            outgoing, self.outgoing = self.outgoing, None
            outgoing.read()
            outgoing.write(PLAIN_HTTP_ANSWER)
            # Event loops drop what is outgoing after an error, but send it before they wait for more input. The
            # connection ends with the client, or with the timeout of the handshake.
            raise ssl.SSLWantReadError from error


class RenewableContext(ssl.SSLContext):
    """A context that starts each new connection with the newest context made from its files.

    OpenSSL can add authorities to a context, but cannot remove one. So a new context replaces the old one, with
    certificate, key and authorities. The new context does not accept TLS sessions of the old one. Otherwise a client
    whose authority was removed could resume a session without showing its certificate again. Connections that are open
    do not change.
    """

    _newest: ssl.SSLContext | None = None

    def renew(self, newest: ssl.SSLContext) -> None:
        """Use the context ``newest`` for new connections from now on."""
        self._newest = newest

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Start a connection. Both kinds of event loops that nodes use call this method, at both ends."""
        make = super().wrap_bio if self._newest is None else self._newest.wrap_bio
        found = make(incoming, outgoing, server_side, server_hostname, session)
        if isinstance(found, AnsweringObject):
            found.outgoing = outgoing
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTls:
    """The contexts for the two ends of a peer connection."""

    server: RenewableContext
    client: RenewableContext


def api_tls(config: NodeConfig) -> RenewableContext | None:
    """Return the context for HTTPS of the API; None if the API uses plain HTTP.

    Raises:
        StartupError: a file cannot be read, or has the wrong contents.
    """
    certificate, key = config.tls_cert_file, config.tls_key_file
    if certificate is None or key is None:
        return None
    context = _context(ssl.PROTOCOL_TLS_SERVER, "tls", certificate, key)
    context.sslobject_class = AnsweringObject
    if config.tls_client_ca_file is not None and config.client_auth != "none":
        _trust(context, "tls_client_ca_file", config.tls_client_ca_file)
        if config.client_auth == "optional":
            # The client may show no certificate. If it shows one, that must be valid.
            context.verify_mode = ssl.CERT_OPTIONAL
    return context


def peer_tls(config: NodeConfig) -> PeerTls | None:
    """Return the contexts for mutual TLS between nodes; None if peers use no TLS.

    Raises:
        StartupError: a file cannot be read, or has the wrong contents.
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
    """Loads renewed certificates and authorities without a restart. New connections use them; open ones do not change.

    ``make``: makes all ``contexts`` again, in the same order, or raises ``StartupError``. ``certificates``: option →
    file, for the files with certificates. ``expiry_s``: option → unix time at which the certificate in use expires.
    Call ``maybe_reload`` periodically. It is cheap, because it compares only times and sizes of the files.
    """

    def __init__(
        self,
        files: Sequence[Path],
        contexts: Sequence[RenewableContext],
        make: Callable[[], Sequence[ssl.SSLContext]],
        certificates: Mapping[str, Path] | None = None,
    ) -> None:
        self._files = files
        self._certificates = certificates or {}
        self.expiry_s = _expiries(self._certificates)
        self._contexts = contexts
        self._make = make
        self._seen = self._stamp()

    def maybe_reload(self) -> bool:
        """Load the files if they changed. If they do not fit together (half written), try again at the next call."""
        stamp = self._stamp()
        if stamp is None or stamp == self._seen:
            return False
        try:
            # Make all contexts before one is renewed: both ends of peer connections must trust the same authority.
            made = self._make()
        except StartupError as error:
            log.warning("certificate not taken file=%s error=%s", self._files[0], error.message)
            return False
        for context, newest in zip(self._contexts, made, strict=True):
            context.renew(newest)
        self._seen = stamp
        self.expiry_s = _expiries(self._certificates)
        log.info("certificate renewed file=%s", self._files[0])
        return True

    def _stamp(self) -> tuple[int, ...] | None:
        try:
            found = [os.stat(path) for path in self._files]
        except OSError:
            return None
        return tuple(
            value for stat in found for value in (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        )


def watches_of(
    config: NodeConfig, api: RenewableContext | None, peer: PeerTls | None
) -> tuple[CertificateWatch, ...]:
    """Return a watch for the files of each port that uses TLS."""
    watches = []
    if api is not None:
        authority = None if config.client_auth == "none" else config.tls_client_ca_file
        files = _given(config.tls_cert_file, config.tls_key_file, authority)
        shown = _named(tls_cert_file=config.tls_cert_file, tls_client_ca_file=authority)
        watches.append(CertificateWatch(files, [api], lambda: _given(api_tls(config)), shown))
    if peer is not None:
        files = _given(config.peer_tls_cert_file, config.peer_tls_key_file, config.peer_tls_ca_file)

        def ends() -> Sequence[ssl.SSLContext]:
            return [end for made in _given(peer_tls(config)) for end in (made.server, made.client)]

        shown = _named(
            peer_tls_cert_file=config.peer_tls_cert_file, peer_tls_ca_file=config.peer_tls_ca_file
        )
        watches.append(CertificateWatch(files, [peer.server, peer.client], ends, shown))
    return tuple(watches)


def _given(*values: _Value | None) -> list[_Value]:
    return [value for value in values if value is not None]


def _named(**paths: Path | None) -> dict[str, Path]:
    return {name: path for name, path in paths.items() if path is not None}


def _expiries(certificates: Mapping[str, Path]) -> dict[str, float]:
    """Return, for each file, the unix time at which its first certificate expires. Leave out files that are unreadable.

    A file may have a chain or several authorities. Clients and peers refuse a chain as soon as one part has expired.
    """
    # Import it here: nodes without TLS do not need a cryptography library.
    from cryptography import x509  # noqa: PLC0415

    found = {}
    for name, path in certificates.items():
        try:
            chain = x509.load_pem_x509_certificates(path.read_bytes())
        except (OSError, ValueError) as error:
            log.warning("expiry of certificates unknown file=%s error=%s", path, error)
            continue
        found[name] = min(one.not_valid_after_utc.timestamp() for one in chain)
    return found


def _context(protocol: int, name: str, certificate: Path, key: Path) -> RenewableContext:
    context = RenewableContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        raise StartupError(
            f"{name}_cert_file {certificate} and {name}_key_file {key}: {_told(error)}"
        ) from error
    return context


_TOLD = {
    "KEY_VALUES_MISMATCH": "the key does not belong to the certificate",
    "NO_CERTIFICATE_OR_CRL_FOUND": "the file holds no certificate; give a PEM file",
}
"""OpenSSL's reasons in the words of an operator. Other reasons are shown as they are."""


def _told(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        # Python then says "PEM lib", which names neither the file nor the fault.
        if error.reason in {None, "PEM_LIB"}:
            return "these are not a certificate and its unencrypted key; give PEM files"
        return _TOLD.get(error.reason, str(error))
    return error.strerror or str(error)


def _trust(context: ssl.SSLContext, name: str, authority: Path) -> None:
    """Require a certificate from the other end that the authority has signed."""
    try:
        context.load_verify_locations(cafile=authority)
    except OSError as error:
        raise StartupError(f"{name} {authority}: {_told(error)}") from error
    context.verify_mode = ssl.CERT_REQUIRED
