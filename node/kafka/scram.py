"""The exchange of SCRAM: four messages, of which the client sends the first and the third. Pure.

Each message is checked as a whole. A message that is not exactly of the form is refused, and the exchange is over.
Left out: channel binding (the variants with ``-PLUS``), and Kafka's extension ``tokenauth``, because the cluster's
tokens authenticate by PLAIN and OAUTHBEARER.

Source: RFC 5802, section 7 (grammar), KIP-84.
"""

import base64
import binascii
import re
from typing import TYPE_CHECKING

from milena.model.access import ScramMechanism
from milena.model.errors import UnauthenticatedError
from node.access.scram_logins import ScramChallenge, ScramLogins

if TYPE_CHECKING:
    from http_api.access.callers import ScramLogin

MESSAGE_BYTES_MAX = 4_096
"""Largest message of a client. Those of real clients have less than 600 bytes."""

_NAME = r"(?:[^,=\0]|=2C|=3D)+"
_NONCE = r"[!-+\--~]{1,1024}"
_EXTENSIONS = r"(?:,[A-Za-z]+=[^,\0]+)*"
_CLIENT_FIRST = re.compile(
    rf"(?P<header>n,(?:a=(?P<acts_for>{_NAME}))?,)"
    rf"(?P<bare>n=(?P<user>{_NAME}),r=(?P<nonce>{_NONCE})(?P<extensions>{_EXTENSIONS}))"
)
_CLIENT_FINAL = re.compile(
    rf"(?P<unproved>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>{_NONCE})(?P<extensions>{_EXTENSIONS}))"
    r",p=(?P<proof>[A-Za-z0-9+/=]+)"
)


class ScramExchange:
    """One exchange with a client. ``user`` is the name that the client gave; empty before that."""

    def __init__(self, mechanism: ScramMechanism, logins: ScramLogins, host: str) -> None:
        self._mechanism = mechanism
        self._logins = logins
        self._host = host
        self._challenge: ScramChallenge | None = None
        self._header = self._begun = self._nonce = ""
        """Parts of the first messages: the client's header, all but the header, and the nonce."""
        self.user = ""
        self.login: ScramLogin | None = None
        """Set once the client has proved its password."""

    def take(self, message: bytes) -> bytes:
        """Take a message of the client; return the server's response.

        Raises:
            UnauthenticatedError: the message is malformed or not allowed, or its proof is wrong. The exchange is over.
            TooManyRequestsError, NotReadyError: the proof cannot be checked now.
        """
        assert self.login is None, "the exchange is over"
        text = _text(message)
        return (self._first(text) if self._challenge is None else self._final(text)).encode()

    def _first(self, text: str) -> str:
        found = _CLIENT_FIRST.fullmatch(text)
        if found is None:
            raise UnauthenticatedError(
                f"the first message of {self._mechanism} is n,,n=user,r=nonce, in UTF-8 and without channel binding; "
                "see RFC 5802"
            )
        self.user = _unescaped(found["user"])
        if found["acts_for"] is not None and _unescaped(found["acts_for"]) != self.user:
            raise UnauthenticatedError(
                "a client acts for the user that it authenticates as, and for no other"
            )
        _check_extensions(found["extensions"])
        challenge = self._logins.begin(self.user, self._mechanism, self._host)
        self._nonce = found["nonce"] + challenge.nonce
        credential = challenge.credential
        answer = f"r={self._nonce},s={_base64(credential.salt)},i={credential.iterations}"
        self._header, self._begun = found["header"], f"{found['bare']},{answer}"
        self._challenge = challenge
        return answer

    def _final(self, text: str) -> str:
        assert self._challenge is not None
        found = _CLIENT_FINAL.fullmatch(text)
        proof = b"" if found is None else _bytes(found["proof"])
        if found is None or len(proof) != self._mechanism.key_bytes:
            raise UnauthenticatedError(
                f"the final message of {self._mechanism} is c=binding,r=nonce,p=proof, with a proof of "
                f"{self._mechanism.key_bytes} bytes; see RFC 5802"
            )
        _check_extensions(found["extensions"])
        # The binding repeats the header of the first message: a header that was changed on the way does not match.
        if _bytes(found["binding"]) != self._header.encode() or found["nonce"] != self._nonce:
            raise UnauthenticatedError(
                f"the final message of {self._mechanism} belongs to another exchange: its nonce or binding differs"
            )
        auth_message = f"{self._begun},{found['unproved']}".encode()
        self.login, signature = self._logins.finish(
            self._challenge, auth_message, proof, self._host
        )
        return f"v={_base64(signature)}"


def _text(message: bytes) -> str:
    if len(message) <= MESSAGE_BYTES_MAX:
        try:
            return message.decode()
        except UnicodeDecodeError:
            pass
    raise UnauthenticatedError(
        f"a message of SCRAM is UTF-8 of at most {MESSAGE_BYTES_MAX} bytes; see RFC 5802"
    )


def _check_extensions(extensions: str) -> None:
    """Refuse the extensions that must not be ignored. Others have no meaning here."""
    for extension in extensions.split(",")[1:]:
        name = extension.partition("=")[0].lower()
        if name == "m":
            raise UnauthenticatedError(
                "this node knows no mandatory extension of SCRAM: leave out m="
            )
        if name == "tokenauth":
            raise UnauthenticatedError(
                "delegation tokens do not exist here: use a token of the cluster with PLAIN or OAUTHBEARER"
            )


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    """Return the bytes of canonical base64; none if the text is not."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
    return data if _base64(data) == text else b""
