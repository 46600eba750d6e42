"""Who a query asks as: from its options, those of Kafka's for a user with a password too, else from the environment.

What options say goes before what the environment of the driver does, as on the command line. Files of secrets are read
on the driver (``carried``); tasks have what was in them.
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
"""Names of options, each with the attribute that it says."""

QUERY_TOKEN_MS = 24 * 3_600_000
"""How long a token of the tasks of a batch query is good: they keep the one that they begin with."""
STREAM_TOKEN_MS = 3_600_000
"""As much for a stream, of which each batch may get another one."""
TOKEN_MS_MIN = 60_000


@unique
class TaskToken(StrEnum):
    """Whether tasks get a token of their own: where there can be one, always (or the query fails), or never."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTokenRule:
    """Whether tasks get a token, and how long one is good."""

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
"""Each with its scheme, and whether it says who asks."""

_WHO = "milena.token, milena.tokenFile, or milena.user and milena.password"

_LOGIN = re.compile(r"\s*(?:\w+\.)*PlainLoginModule\s+required\b(.*?);?\s*", re.DOTALL)
_PAIR = re.compile(r"""\s+(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s;"']+))""")


def parse_credentials(
    text: Callable[[str], str | None], urls: Sequence[str], environment: Mapping[str, str]
) -> Credentials:
    """What ``text`` says of each option, on top of the environment.

    Raises:
        OptionError: one line that names the option, without what is secret.
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
    """The same for tasks, which have no file of a secret.

    Raises:
        BadCredentialsError: a file cannot be read, or holds something else.
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
    """The options that say this."""
    said = {option: getattr(credentials, name) for option, name in CREDENTIALS.items()}
    return {
        option: found.reveal() if isinstance(found, Secret) else os.fspath(found)
        for option, found in said.items()
        if found is not None
    }
