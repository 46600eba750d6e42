"""TLS contexts from the files that the configuration names, and their renewal.

Peers authenticate each other: each shows a certificate and asks for one that the cluster's authority has signed; the
dialer also checks that the name or address it dialled stands in it. Contexts may be used from several threads.
"""

import logging
import os
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from milena.model.errors import StartupError
from node.config.options import NodeConfig

log = logging.getLogger(__name__)

_Value = TypeVar("_Value")


class RenewableContext(ssl.SSLContext):
    """A context that hands each new connection to the newest one that was made of its files.

    A context can be given further authorities, and none can be taken from it: so another takes its place, with
    certificate, key and authorities, and with no session or ticket of the old one's, by which a client whose authority
    is gone could go on without showing its certificate again. Connections that are there stay as they are.
    """

    _newest: ssl.SSLContext | None = None

    def renew(self, newest: ssl.SSLContext) -> None:
        """Have connections made by this one from now on."""
        self._newest = newest

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Begin a connection; both event loops that nodes run on do it by this call, whichever side they are."""
        make = super().wrap_bio if self._newest is None else self._newest.wrap_bio
        return make(incoming, outgoing, server_side, server_hostname, session)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTls:
    """The two ends of a peer connection."""

    server: RenewableContext
    client: RenewableContext


def api_tls(config: NodeConfig) -> RenewableContext | None:
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
    """Takes renewed certificates and authorities without a restart: new connections use them, old ones go on.

    ``make`` makes all ``contexts`` anew, in order, or raises ``StartupError``. ``maybe_reload`` is cheap, to be called
    now and then; it looks at the files' times and sizes.
    """

    def __init__(
        self,
        files: Sequence[Path],
        contexts: Sequence[RenewableContext],
        make: Callable[[], Sequence[ssl.SSLContext]],
    ) -> None:
        self._files = files
        self._contexts = contexts
        self._make = make
        self._seen = self._stamp()

    def maybe_reload(self) -> bool:
        """Load the files if they changed; what does not fit (half written) is tried again next time."""
        stamp = self._stamp()
        if stamp is None or stamp == self._seen:
            return False
        try:
            # All of them first: one end must not believe in another authority than the other.
            made = self._make()
        except StartupError as error:
            log.warning("certificate not taken file=%s error=%s", self._files[0], error.message)
            return False
        for context, newest in zip(self._contexts, made, strict=True):
            context.renew(newest)
        self._seen = stamp
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
    """A watch for the files of each port that speaks TLS."""
    watches = []
    if api is not None:
        authority = None if config.client_auth == "none" else config.tls_client_ca_file
        files = _given(config.tls_cert_file, config.tls_key_file, authority)
        watches.append(CertificateWatch(files, [api], lambda: _given(api_tls(config))))
    if peer is not None:
        files = _given(config.peer_tls_cert_file, config.peer_tls_key_file, config.peer_tls_ca_file)

        def ends() -> Sequence[ssl.SSLContext]:
            return [end for made in _given(peer_tls(config)) for end in (made.server, made.client)]

        watches.append(CertificateWatch(files, [peer.server, peer.client], ends))
    return tuple(watches)


def _given(*values: _Value | None) -> list[_Value]:
    return [value for value in values if value is not None]


def _context(protocol: int, name: str, certificate: Path, key: Path) -> RenewableContext:
    context = RenewableContext(protocol)
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
