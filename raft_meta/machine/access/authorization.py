"""Authorization: decides by the image's access control entries what a principal may do. No other module decides this.

An entry that denies an operation wins over entries that allow it, regardless of their patterns and hosts. An operation
that no entry allows is refused. Superusers may do everything. A token may do only what its user may do and its grants
allow.

Source: Kafka's AclAuthorizer and KIP-290.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from milena.model import access as words
from raft_meta.machine.image import Acl, Grant, Image

_DENIED_BY = {
    operation: frozenset({operation, words.Operation.ALL}) for operation in words.Operation
}


class _Words(NamedTuple):
    """The operations that the entries of one resource pattern allow, and those that they deny."""

    allowed: set[str]
    denied: set[str]


class _Patterns:
    """Entries by resource type and pattern, so that a decision reads only entries whose pattern matches the name."""

    def __init__(self) -> None:
        self._literal: dict[tuple[str, str], _Words] = {}
        self._prefixed: dict[tuple[str, str], _Words] = {}
        self._lengths: dict[str, list[int]] = {}
        """The lengths of all prefixes, by resource type."""

    def add(
        self, kind: str, pattern: str, name: str, operations: Iterable[str], permission: str
    ) -> None:
        is_prefix = pattern == words.PatternType.PREFIXED
        found = (self._prefixed if is_prefix else self._literal).setdefault(
            (kind, name), _Words(set(), set())
        )
        (found.denied if permission == words.Permission.DENY else found.allowed).update(operations)
        if is_prefix:
            lengths = self._lengths.setdefault(kind, [])
            if len(name) not in lengths:
                lengths.append(len(name))

    def may(self, operation: words.Operation, kind: words.ResourceType, name: str) -> bool:
        is_allowed = False
        for found in self._matching(kind, name):
            if not found.denied.isdisjoint(_DENIED_BY[operation]):
                return False
            is_allowed = is_allowed or not found.allowed.isdisjoint(words.ALLOWED_BY[operation])
        return is_allowed

    def _matching(self, kind: str, name: str) -> Iterable[_Words]:
        for literal in (name, words.ANY_NAME):
            found = self._literal.get((kind, literal))
            if found is not None:
                yield found
        for length in self._lengths.get(kind, ()):
            # If the name is shorter than ``length``, the slice is the whole name: no prefix of this length.
            found = self._prefixed.get((kind, name[:length]))
            if found is not None and len(name) >= length:
                yield found

    def may_with_all(self, operation: words.Operation, kind: words.ResourceType) -> bool:
        everything = self._literal.get((kind, words.ANY_NAME))
        if everything is None or everything.allowed.isdisjoint(words.ALLOWED_BY[operation]):
            return False
        return all(found.denied.isdisjoint(_DENIED_BY[operation]) for found in self._of(kind))

    def may_with_some(self, operation: words.Operation, kind: words.ResourceType) -> bool:
        everything = self._literal.get((kind, words.ANY_NAME))
        if everything is not None and not everything.denied.isdisjoint(_DENIED_BY[operation]):
            return False
        allowing = words.ALLOWED_BY[operation]
        return any(not found.allowed.isdisjoint(allowing) for found in self._of(kind))

    def _of(self, kind: str) -> Iterable[_Words]:
        for patterns in (self._literal, self._prefixed):
            for (present, _), found in patterns.items():
                if present == kind:
                    yield found


class Permissions:
    """The permissions of one principal, at one access version."""

    def __init__(self, *, is_superuser: bool, acls: Iterable[Acl], grants: Sequence[Grant]) -> None:
        self._is_superuser = is_superuser
        self._acls = _Patterns()
        for acl in acls:
            self._acls.add(
                acl.resource_type, acl.pattern_type, acl.name, (acl.operation,), acl.permission
            )
        self._grants = _Patterns() if grants else None
        for grant in grants:
            assert self._grants is not None
            self._grants.add(
                grant.resource_type,
                grant.pattern_type,
                grant.name,
                grant.operations,
                words.Permission.ALLOW,
            )

    def may(self, operation: words.Operation, kind: words.ResourceType, name: str) -> bool:
        """Return whether the operation is allowed on the resource with this name. The resource need not exist."""
        if self._grants is not None and not self._grants.may(operation, kind, name):
            return False
        return self._is_superuser or self._acls.may(operation, kind, name)

    def may_with_all(self, operation: words.Operation, kind: words.ResourceType) -> bool:
        """Return whether the operation is allowed on every resource of this type, future ones included."""
        if self._grants is not None and not self._grants.may_with_all(operation, kind):
            return False
        return self._is_superuser or self._acls.may_with_all(operation, kind)

    def may_with_some(self, operation: words.Operation, kind: words.ResourceType) -> bool:
        """Return whether the operation is allowed on at least one possible resource of this type."""
        if self._grants is not None and not self._grants.may_with_some(operation, kind):
            return False
        return self._is_superuser or self._acls.may_with_some(operation, kind)


def depends_on_host(image: Image, principal: str, groups: Iterable[str] = ()) -> bool:
    """Return whether the permissions of this principal, a member of these groups, depend on its host."""
    return any(
        acl.host != words.ANY_HOST
        for named in (principal, words.ANY_PRINCIPAL, *groups)
        for acl in image.acls.get(named, ())
    )


def permissions_of(
    image: Image,
    principal: str,
    *,
    is_superuser: bool,
    host: str,
    groups: Iterable[str] = (),
    grants: Sequence[Grant] = (),
) -> Permissions:
    """Return the permissions of a principal that calls from ``host``, an IP address.

    ``groups``: the principals of the groups to which the caller belongs. Their entries count like the caller's own, so
    one entry that denies wins over all that allow.
    """
    acls = [
        acl
        for named in (principal, words.ANY_PRINCIPAL, *groups)
        for acl in image.acls.get(named, ())
        if acl.host in (words.ANY_HOST, host)
    ]
    return Permissions(is_superuser=is_superuser, acls=acls, grants=grants)
