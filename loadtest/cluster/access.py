"""The load test's credentials for a running cluster, from the environment (``MILENA_TOKEN_FILE`` and others)."""

from collections.abc import Mapping

import aiohttp

from milena.cluster.credentials import VARIABLES, Credentials, texts_of
from milena.errors import BadCredentialsError
from milena.model.quotas import CLIENT_ID_HEADER


def credentials_of(environment: Mapping[str, str]) -> Credentials:
    """Return the credentials from the environment, as for the command ``milena``.

    Raises:
        BadCredentialsError: the environment's variables contradict each other.
    """
    try:
        return Credentials.from_texts(texts_of(environment))
    except ValueError as error:
        raise BadCredentialsError(f"credentials: {error}") from error


def without_credentials(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for clients of a cluster that the test started, which has no access control."""
    return {name: value for name, value in environment.items() if name not in VARIABLES.values()}


def headers_of(credentials: Credentials) -> dict[str, str]:
    """Return the headers of every request.

    Raises:
        BadCredentialsError: a file cannot be read, or has other content.
    """
    value = credentials.authorization()
    headers = {} if value is None else {"Authorization": value.reveal()}
    if credentials.client_id is not None:
        headers[CLIENT_ID_HEADER] = credentials.client_id
    return headers


def session_for(credentials: Credentials, limits: aiohttp.ClientTimeout) -> aiohttp.ClientSession:
    """Return an HTTP session that sends these credentials.

    Raises:
        BadCredentialsError: as ``headers_of``, or a certificate cannot be used.
    """
    return aiohttp.ClientSession(
        timeout=limits,
        headers=headers_of(credentials),
        connector=aiohttp.TCPConnector(ssl=credentials.tls_context()),
    )
