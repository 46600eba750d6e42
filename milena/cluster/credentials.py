"""The credentials of a client, and the certificate authorities that it trusts. The table lists the names of settings.

    token_file      MILENA_TOKEN_FILE       --token-file       tokenFile       token_file = "..."
    token           MILENA_TOKEN            none               token           token = "..."
    user            MILENA_USER             --user             user            user = "..."
    password_file   MILENA_PASSWORD_FILE    --password-file    passwordFile    password_file = "..."
    password        MILENA_PASSWORD         none               password        password = "..."
    ca              MILENA_CA               --ca               ca              ca = "..."
    cert            MILENA_CERT             --cert             cert            cert = "..."
    key             MILENA_KEY              --key              key             key = "..."
    client_id       MILENA_CLIENT_ID        --client-id        clientId        client_id = "..."
    Credentials     the environment         the command line   Spark           a profile

A token or a password is sent with every request, as ``Authorization``. A client certificate is sent to each server that
an https connection reaches. A client id is not verified: programs that share a quota send the same one (KIP-546). The
command line has no option for a secret, because every user of a machine can read the arguments of all programs.
"""

import re
import ssl
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from os import PathLike
from typing import Self

from milena.errors import BadCredentialsError
from milena.model.quotas import CLIENT_ID
from milena.model.secret import Secret

ENVIRONMENT_PREFIX = "MILENA_"

SECRET_BYTES_MAX = 4_098
"""The largest file with a secret, in bytes: 1,024 characters of four bytes, and the end of a line. A larger file
cannot be the right one."""

_CLIENT_ID = re.compile(CLIENT_ID)
_VISIBLE = re.compile(r"[\x21-\x7e]+")
_NO_CONTROLS = re.compile(r"[^\x00-\x1f\x7f]+")

FilePath = str | PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A token, or a user and a password; a client certificate; the authority that signed the nodes' certificates.

    Files are read when they are first needed. If a node refuses a secret, its file is read again.

    Attributes:
        token, token_file: a token that the cluster issued, or the file that holds it.
        user: a name without a colon.
        password, password_file: the user's password, or the file that holds it.
        ca: PEM of the authorities that may have signed the nodes' certificates; None: those that the machine trusts.
        cert: PEM of this client's certificate and its chain to the authority; it may also hold the key.
        key: PEM of the certificate's key, not encrypted; None: the key is in ``cert``.
        client_id: the program's name for itself, as Kafka's ``client.id``; None: no name.

    Raises:
        ValueError: attributes contradict each other, or a value has characters that no header can hold.
        TypeError: a token or a password is no ``Secret``.
    """

    token: Secret | None = None
    token_file: FilePath | None = None
    user: str | None = None
    password: Secret | None = None
    password_file: FilePath | None = None
    ca: FilePath | None = None
    cert: FilePath | None = None
    key: FilePath | None = None
    client_id: str | None = None

    def __post_init__(self) -> None:
        for name in ("token", "password"):
            if not isinstance(getattr(self, name), Secret | None):
                raise TypeError(f"{name}: wrap it, {name}=Secret(...), so that nothing shows it")
        self._refuse_both("token", "token_file")
        self._refuse_both("password", "password_file")
        self._check_who()
        if self.key is not None and self.cert is None:
            raise ValueError("key: give cert, too")
        if self.client_id is not None and not _CLIENT_ID.fullmatch(self.client_id):
            raise ValueError(f"client_id: {self.client_id!r} is not of the form {CLIENT_ID}")
        if self.token is not None:
            _check_token(self.token.reveal(), "token")
        if self.password is not None:
            _check_password(self.password.reveal(), "password")

    def _check_who(self) -> None:
        has_token = self.token is not None or self.token_file is not None
        has_password = self.password is not None or self.password_file is not None
        if has_token and (has_password or self.user is not None):
            raise ValueError("token and user: give one of the two, a token says whose it is")
        if has_password and self.user is None:
            raise ValueError("password: give user, too")
        if self.user is not None:
            if not has_password:
                raise ValueError("user: give password_file or password, too")
            if ":" in self.user or not _NO_CONTROLS.fullmatch(self.user):
                raise ValueError("user: a name has characters, no colon and no control characters")

    def _refuse_both(self, one: str, other: str) -> None:
        if getattr(self, one) is not None and getattr(self, other) is not None:
            raise ValueError(f"{one} and {other}: give one of the two")

    @classmethod
    def from_texts(cls, texts: Mapping[str, str]) -> Self:
        """Return credentials from texts by attribute name.

        Raises:
            ValueError: the texts are invalid.
        """
        secrets = {name: Secret(text) for name, text in texts.items() if name in SECRETS}
        # mypy takes the merged mapping for a dict of both types.
        return cls(**{**texts, **secrets})  # type: ignore[arg-type]

    @property
    def is_guarded(self) -> bool:
        """True if requests may go only to hosts that the client trusts, because they carry credentials.

        Credentials that only name a ``ca`` count too.
        """
        return replace(self, client_id=None) != ANONYMOUS

    @property
    def is_anonymous(self) -> bool:
        """True if requests carry neither a token nor a user."""
        return self.token is None and self.token_file is None and self.user is None

    def advice(self, status: int) -> str:
        """Return advice for a client that a node refused with 401 or 403."""
        if status == 403:
            return f"asked by {self._asker()}"
        if self.user is not None:
            return f"asked by {self._asker()}; give another user and password_file, or token_file"
        if not self.is_anonymous:
            return (
                f"{self._asker()} is unknown: it is expired, revoked or of another cluster; "
                "give another token_file, or user and password_file"
            )
        shown = "" if self.cert is None else f" and {self.cert} names no user"
        return f"this client does not say who it is{shown}: give it token_file, or user and password_file"

    def _asker(self) -> str:
        if self.user is not None:
            return f"user {self.user!r}"
        if self.token_file is not None:
            return f"the token in {self.token_file}"
        if self.token is not None:
            return "a token"
        return "no certain user" if self.cert is None else f"the owner of {self.cert}"

    def authorization(self) -> Secret | None:
        """Return the value of the ``Authorization`` header; None if anonymous. A file is read again with each call.

        Raises:
            BadCredentialsError: a file cannot be read, or holds something else.
        """
        if self.user is not None:
            password = _secret(self.password, self.password_file, "password", _check_password)
            pair = f"{self.user}:{password.reveal()}".encode()
            return Secret(f"Basic {b64encode(pair).decode()}")
        if self.is_anonymous:
            return None
        return Secret(
            f"Bearer {_secret(self.token, self.token_file, 'token', _check_token).reveal()}"
        )

    def tls_context(self) -> ssl.SSLContext:
        """Return the TLS context of https connections: the authorities to trust, and the certificate to show.

        Raises:
            BadCredentialsError: a file cannot be read, or is not PEM, or certificate and key do not belong together.
        """
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except OSError as error:
            raise BadCredentialsError(f"ca: cannot use {self.ca}: {_reason(error)}") from error
        context.set_alpn_protocols(["http/1.1"])
        if self.cert is not None:
            try:
                # Pass an empty password: without one, OpenSSL asks at the terminal.
                context.load_cert_chain(self.cert, self.key, password="")
            except OSError as error:
                files = self.cert if self.key is None else f"{self.cert} and {self.key}"
                raise BadCredentialsError(
                    f"cert and key: cannot use {files}: {_reason(error)}; they are PEM, belong together, and the key "
                    "is not encrypted"
                ) from error
        return context


NAMES = tuple(field.name for field in fields(Credentials))
SECRETS = frozenset({"token", "password"})
FILES = frozenset({"token_file", "password_file", "ca", "cert", "key"})
VARIABLES = {name: f"{ENVIRONMENT_PREFIX}{name.upper()}" for name in NAMES}
"""The environment variable of each attribute."""

TOKENS = frozenset({"token", "token_file"})
PASSWORDS = frozenset({"password", "password_file"})


def texts_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of ``MILENA_TOKEN_FILE`` and the other variables, by attribute; ignore empty ones."""
    said = {name: environment.get(variable) for name, variable in VARIABLES.items()}
    return {name: text for name, text in said.items() if text}


def nearer(said: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """Return ``before`` updated with ``said``, without the settings of ``before`` that contradict ``said``.

    A token in ``said`` drops user and password in ``before``, and the other way round. A certificate drops the key.
    """
    replaced: set[str] = set()
    if TOKENS & said.keys():
        replaced |= {"user", *TOKENS, *PASSWORDS}
    if "user" in said or PASSWORDS & said.keys():
        replaced |= TOKENS
    if PASSWORDS & said.keys():
        replaced |= PASSWORDS
    if "cert" in said:
        replaced.add("key")
    return {**{name: text for name, text in before.items() if name not in replaced}, **said}


ANONYMOUS = Credentials()
"""Credentials that do not identify the client, and trust the authorities that the machine trusts."""


class Authorization:
    """The ``Authorization`` header of a session's requests.

    Owned by one event loop. Its file is read on the loop, because it is small.
    """

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._value: Secret | None = None

    def value(self) -> Secret | None:
        """Return the value to send.

        Raises:
            BadCredentialsError: as ``Credentials.authorization``.
        """
        if self._value is None and not self._credentials.is_anonymous:
            self._value = self._credentials.authorization()
        return self._value

    def after_refusal(self, refused: Secret | None) -> Secret | None:
        """Return the value to send after a node refused one; None if there is no other.

        Raises:
            BadCredentialsError: as ``Credentials.authorization``.
        """
        # Several calls may be refused with the same value. Only the first one reads the file again.
        if self._value == refused:
            self._value = self._credentials.authorization()
        return None if self._value == refused else self._value


def _secret(
    given: Secret | None,
    file: FilePath | None,
    name: str,
    check: Callable[[str, str], None],
) -> Secret:
    if given is not None:
        return given
    assert file is not None, f"there is a {name}, or a file of it"
    try:
        with open(file, "rb") as opened:
            return _secret_of(opened.read(SECRET_BYTES_MAX + 1), check)
    except (OSError, ValueError) as error:
        raise BadCredentialsError(f"{name}_file: cannot use {file}: {_reason(error)}") from None


def password_of(raw: bytes) -> Secret:
    """Return the password in a file or a stream: one line of text, at most ``SECRET_BYTES_MAX`` bytes.

    Raises:
        ValueError: the content is something else; the message does not show it.
    """
    return _secret_of(raw, _check_password)


def _secret_of(raw: bytes, check: Callable[[str, str], None]) -> Secret:
    if len(raw) > SECRET_BYTES_MAX:
        raise ValueError(f"it has more than {SECRET_BYTES_MAX} bytes")
    try:
        text = raw.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        # The error's own text would show the content.
        raise ValueError("it is not text") from None
    check(text, "it")
    return Secret(text)


def _check_token(text: str, what: str) -> None:
    if not _VISIBLE.fullmatch(text):
        raise ValueError(f"{what} must be one word of visible ASCII")


def _check_password(text: str, what: str) -> None:
    if not _NO_CONTROLS.fullmatch(text):
        raise ValueError(f"{what} must be one line, not empty, without control characters")


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
