"""Makes the token verifier for the issuer that a node's configuration names."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from pathlib import Path

from milena.model.clock import Clock
from milena.model.errors import StartupError
from node.access.issuer_keys import IssuerKeys
from node.access.key_set import DOCUMENT_BYTES_MAX, KeySetError
from node.access.web_tokens import WebTokens
from node.config.options import NodeConfig
from node.process.https import fetch


def web_tokens_of(config: NodeConfig, *, pool: Executor, clock: Clock) -> WebTokens:
    """Return the verifier of tokens of ``oidc_issuer``. Keys in a file are read now, keys at a URL by ``keys.run``.

    Raises:
        StartupError: the file of keys cannot be read, or has no usable key.
    """
    assert config.oidc_issuer is not None, "an issuer"
    assert config.oidc_audience is not None, "an issuer has an audience"
    path, url = config.oidc_jwks_file, config.oidc_jwks_url
    if path is None:
        assert url is not None, "an issuer has keys somewhere"
        keys = IssuerKeys(where=url, read=_from_url(url), clock=clock)
    else:
        keys = IssuerKeys(where=str(path), read=_from_file(path, pool), clock=clock)
        try:
            keys.take(_read(path))
        except (OSError, KeySetError) as error:
            raise StartupError(f"oidc_jwks_file {path}: {error}") from error
    return WebTokens(
        issuer=config.oidc_issuer,
        audience=config.oidc_audience,
        user_claim=config.oidc_user_claim,
        groups_claim=config.oidc_groups_claim,
        keys=keys,
        clock=clock,
    )


def _from_url(url: str) -> Callable[[], Awaitable[bytes]]:
    return lambda: fetch(url, bytes_max=DOCUMENT_BYTES_MAX)


def _from_file(path: Path, pool: Executor) -> Callable[[], Awaitable[bytes]]:
    return lambda: asyncio.get_running_loop().run_in_executor(pool, _read, path)


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(DOCUMENT_BYTES_MAX + 1)
