"""Finds the user that a client's certificate names: by the common name, or by the operator's rule."""

import re

import re2

from http_api.access.certificates import ClientCertificate
from milena.model.access import USER_NAME

_COMMON_NAME = r"CN:((?s:.*))"
_USER = re.compile(USER_NAME)


class NamelessCertificateError(Exception):
    """The certificate names no user, or several; the message says why."""


class CertificateNames:
    """Finds users by a rule: an RE2 pattern. It must match a whole name of the certificate; group 1 is the user.

    Names start with ``CN:``, ``DNS:``, ``URI:`` or ``EMAIL:``. If ``rule`` is None, the common name is the user. If
    several names of a certificate match, all must give the same user.
    """

    def __init__(self, rule: str | None) -> None:
        self._rule = rule
        options = re2.Options()
        options.log_errors = False
        self._pattern = re2.compile(_COMMON_NAME if rule is None else rule, options)

    def user_of(self, certificate: ClientCertificate) -> str:
        """Return the name of the user that the certificate names.

        Raises:
            NamelessCertificateError: the certificate names no user, or several.
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
