"""Find a query's credentials in its options, including Kafka's for a user and password, else in the environment.

Options override the environment of the driver, as on the command line. The driver reads files of secrets
(``carried``); tasks get the content.
"""

import os
import re
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum, unique

from milena.cluster.credentials import Credentials, nearer, texts_of
from milena.cluster.routing import normalise_url
from milena.model.secret import Secret
from spark_ext.errors import OptionError
from spark_ext.options.ignored import warn_ignored

CREDENTIALS = {
    "milena.token": "token",
    "milena.tokenFile": "token_file",
    "milena.user": "user",
    "milena.password": "password",
    "milena.passwordFile": "password_file",
    "milena.ca": "ca",
    "milena.cert": "cert",
    "milena.key": "key",
    "milena.clientId": "client_id",
}
"""The names of options, each with the attribute that it sets."""

QUERY_TOKEN_MS = 24 * 3_600_000
"""The lifetime of a batch query's token, in ms: its tasks keep the token that they start with."""
STREAM_TOKEN_MS = 3_600_000
"""The lifetime of a stream's token, in ms: each batch may get another token."""
TOKEN_MS_MIN = 60_000


@unique
class TaskToken(StrEnum):
    """The rule whether tasks get their own token: if possible, always (else the query fails), or never."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTokenRule:
    """The rule whether tasks get a token, and the token's lifetime in ms."""

    use: TaskToken = TaskToken.AUTO
    lifetime_ms: int = QUERY_TOKEN_MS


TOKEN_OF_QUERY = TaskTokenRule()

TASK_TOKEN, TASK_TOKEN_LIFETIME = "milena.taskToken", "milena.taskTokenLifetime"

_PROTOCOL, _MECHANISM, _JAAS = (
    "kafka.security.protocol",
    "kafka.sasl.mechanism",
    "kafka.sasl.jaas.config",
)
CREDENTIAL_OPTIONS = (
    *CREDENTIALS,
    TASK_TOKEN,
    TASK_TOKEN_LIFETIME,
    _PROTOCOL,
    _MECHANISM,
    _JAAS,
)

_PROTOCOLS = {
    "PLAINTEXT": ("http", False),
    "SSL": ("https", False),
    "SASL_PLAINTEXT": ("http", True),
    "SASL_SSL": ("https", True),
}
"""Kafka's security protocols, each with its URL scheme, and whether it authenticates the client."""

_WHO = "milena.token, milena.tokenFile, or milena.user and milena.password"

_LOGIN = re.compile(r"\s*(?:\w+\.)*PlainLoginModule\s+required\b(.*?);?\s*", re.DOTALL)
_PAIR = re.compile(r"""\s+(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""")


def parse_credentials(
    text: Callable[[str], str | None], urls: Sequence[str], environment: Mapping[str, str]
) -> Credentials:
    """Return the credentials that the options ``text`` set, on top of the environment.

    Raises:
        OptionError: one line that names the option, without the secret.
    """
    found = {name: text(option) for option, name in CREDENTIALS.items()}
    said = {name: each for name, each in found.items() if each is not None}
    said |= _of_kafka(text, said)
    try:
        credentials = Credentials.from_texts(nearer(said, texts_of(environment)))
    except ValueError as error:
        raise OptionError(f"credentials: {error}") from None
    _check_protocol(text(_PROTOCOL), urls, credentials, has_user=text(_JAAS) is not None)
    return credentials


def _of_kafka(text: Callable[[str], str | None], said: Mapping[str, str]) -> dict[str, str]:
    mechanism, config = text(_MECHANISM), text(_JAAS)
    if mechanism is not None and mechanism.strip().upper() != "PLAIN":
        raise OptionError(f"{_MECHANISM}: expected PLAIN, got {mechanism!r}; or give {_WHO}")
    if config is None:
        return {}
    if both := sorted(said.keys() & {"token", "token_file", "user", "password", "password_file"}):
        option = next(option for option, name in CREDENTIALS.items() if name == both[0])
        raise OptionError(f"{_JAAS} and {option}: give one of the two")
    login = _LOGIN.fullmatch(config)
    pairs = _PAIR.findall(login[1]) if login is not None else []
    found = {name: _unescaped(one or two) or bare for name, one, two, bare in pairs}
    if (
        login is None
        or _PAIR.sub("", login[1]).strip()
        or not {"username", "password"} <= found.keys()
    ):
        raise OptionError(
            f'{_JAAS}: expected …PlainLoginModule required username="…" password="…"; or give {_WHO}'
        )
    for name in sorted(found.keys() - {"username", "password"}):
        warn_ignored(f"{name} of {_JAAS}", "a user has a name and a password")
    return {"user": found["username"], "password": found["password"]}


def _unescaped(quoted: str) -> str:
    return re.sub(r"\\(.)", r"\1", quoted)


def _check_protocol(
    text: str | None, urls: Sequence[str], credentials: Credentials, *, has_user: bool
) -> None:
    if text is None:
        return
    protocol = text.strip().upper()
    if protocol not in _PROTOCOLS:
        raise OptionError(f"{_PROTOCOL}: expected {', '.join(_PROTOCOLS)}, got {text!r}")
    scheme, has_login = _PROTOCOLS[protocol]
    for url in map(normalise_url, urls):
        if not url.startswith(f"{scheme}://"):
            raise OptionError(
                f"{_PROTOCOL}: {protocol} is {scheme}, and {url} is not: write {scheme}://host:port, or leave the "
                "option out"
            )
    if has_login and credentials.is_anonymous:
        raise OptionError(f"{_PROTOCOL}: {protocol} says who asks: give {_JAAS}, {_WHO}")
    if has_user and not has_login:
        raise OptionError(
            f"{_PROTOCOL}: {protocol} does not say who asks, and {_JAAS} does: it is SASL_{protocol}"
        )


def carried(credentials: Credentials) -> Credentials:
    """Return the credentials for tasks, with the content of secret files instead of their paths.

    Raises:
        BadCredentialsError: a file cannot be read, or has other content.
    """
    if credentials.token_file is None and credentials.password_file is None:
        return credentials
    header = credentials.authorization()
    assert header is not None, "there is a secret"
    kind, _, text = header.reveal().partition(" ")
    if kind == "Bearer":
        return replace(credentials, token=Secret(text), token_file=None)
    _, _, password = b64decode(text).decode().partition(":")
    return replace(credentials, password=Secret(password), password_file=None)


def options_of(credentials: Credentials) -> dict[str, str]:
    """Return the options that set these credentials."""
    said = {option: getattr(credentials, name) for option, name in CREDENTIALS.items()}
    return {
        option: found.reveal() if isinstance(found, Secret) else os.fspath(found)
        for option, found in said.items()
        if found is not None
    }
