"""The user that a client's certificate names: by its common name, or by a rule of the operator."""

import re

import re2

from http_api.access.certificates import ClientCertificate
from milena.model.access import USER_NAME

_COMMON_NAME = r"CN:((?s:.*))"
_USER = re.compile(USER_NAME)


class NamelessCertificateError(Exception):
    """The certificate names no user, or more than one; the message says why."""


class CertificateNames:
    """A rule: an RE2 pattern that a name of the certificate must match as a whole; its group 1 is the user.

    Names are ``CN:``, ``DNS:``, ``URI:`` or ``EMAIL:``, followed by the value. ``rule`` None: the common name is the
    user. If several names of a certificate match, all must mean the same user.
    """

    def __init__(self, rule: str | None) -> None:
        self._rule = rule
        options = re2.Options()
        options.log_errors = False
        self._pattern = re2.compile(_COMMON_NAME if rule is None else rule, options)

    def user_of(self, certificate: ClientCertificate) -> str:
        """Return the name of the user.

        Raises:
            NamelessCertificateError: the certificate names no user, or more than one.
        """
        found = {match[1] for name in certificate.names if (match := self._match(name))}
        what = "a common name" if self._rule is None else "a name that tls_principal_rule matches"
        if not found:
            raise NamelessCertificateError(f"the client's certificate has not {what}")
        if len(found) > 1:
            raise NamelessCertificateError(
                f"the client's certificate has more than {what}, and they mean different users"
            )
        user = found.pop()
        if user is None or not _USER.fullmatch(user):
            raise NamelessCertificateError(
                f"the client's certificate names {user!r}, and a user has 1 to 255 letters, digits or . _ @ / + = -"
            )
        return str(user)

    def _match(self, name: str) -> "re2._Match[str] | None":
        try:
            return self._pattern.fullmatch(name)
        except UnicodeEncodeError:
            return None
