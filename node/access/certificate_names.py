"""Whom a client's certificate names: the user of its common name, or of what a rule of the operator finds in it."""

import re

import re2

from http_api.access.certificates import ClientCertificate
from milena.model.access import USER_NAME

_COMMON_NAME = r"CN:((?s:.*))"
_USER = re.compile(USER_NAME)


class NamelessCertificateError(Exception):
    """It names nobody, or more than one; says why."""


class CertificateNames:
    """A rule: an RE2 pattern that a name of the certificate must match as a whole, and whose group 1 is the user.

    Names are ``CN:``, ``DNS:``, ``URI:`` or ``EMAIL:`` and what follows; ``rule`` None: the common name is the user's.
    A certificate of which several names match must mean the same user by all.
    """

    def __init__(self, rule: str | None) -> None:
        self._rule = rule
        options = re2.Options()
        options.log_errors = False
        self._pattern = re2.compile(_COMMON_NAME if rule is None else rule, options)

    def user_of(self, certificate: ClientCertificate) -> str:
        """The name of the user.

        Raises:
            NamelessCertificateError: there is none.
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
