"""Words of access control as people write them on a command line (pure)."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from milena.cluster.access_views import AclEntry, AclFilter, TokenGrant
from milena.model.access import (
    ANY_HOST,
    ANY_NAME,
    CLUSTER_NAME,
    OPERATIONS_OF,
    USER_PREFIX,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

_PRINCIPAL_PREFIXES = (USER_PREFIX, "Group:")
_ANY = (None, None)

W = TypeVar("W", bound=StrEnum)


def parse_operations(text: str) -> tuple[Operation, ...]:
    """Parse ``READ,WRITE``, in any case; repeated operations count once.

    Raises:
        ValueError: a word is no operation, or there are none.
    """
    words = [_word(part, Operation, "operation") for part in text.split(",")]
    return tuple(dict.fromkeys(words))


def parse_grant(text: str) -> TokenGrant:
    """Parse ``READ,WRITE:TOPIC:orders``; a name that ends in ``*`` is a prefix, ``*`` alone is every name.

    The cluster has no name: ``DESCRIBE:CLUSTER``.

    Raises:
        ValueError: the text has another form; the message says what to write.
    """
    parts = text.split(":", 2)
    if len(parts) < 2:
        raise ValueError(f"{text!r} is not OPERATIONS:TYPE:NAME, as in READ,WRITE:TOPIC:orders")
    operations, kind = parse_operations(parts[0]), _word(parts[1], ResourceType, "type")
    name = parts[2] if len(parts) > 2 else ""
    if kind is ResourceType.CLUSTER:
        if name not in ("", CLUSTER_NAME):
            raise ValueError(f"{text!r}: the cluster has no name, say {parts[0]}:CLUSTER")
        name = CLUSTER_NAME
    elif not name:
        raise ValueError(f"{text!r}: say which {kind}, or * for all: {parts[0]}:{parts[1]}:NAME")
    for operation in operations:
        _check_operation(operation, kind)
    is_prefix = name.endswith("*") and name != ANY_NAME
    return TokenGrant(
        resource_type=kind,
        name=name[:-1] if is_prefix else name,
        operations=operations,
        pattern_type=PatternType.PREFIXED if is_prefix else PatternType.LITERAL,
    )


def parse_principal(text: str) -> str:
    """Check a principal: ``User:alice``, or ``User:*`` for everyone.

    Raises:
        ValueError: the kind or the name is missing.
    """
    if not any(text.startswith(prefix) and text != prefix for prefix in _PRINCIPAL_PREFIXES):
        raise ValueError(f"{text!r} is not a principal: say {USER_PREFIX}{text or 'NAME'}")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class AclWords:
    """The entries that a command names. An option that is given several times stands for several entries."""

    principal: str | None
    allowed: Sequence[Operation]
    denied: Sequence[Operation]
    resources: Sequence[tuple[ResourceType, str]]
    is_prefixed: bool
    host: str | None

    def entries(self) -> list[AclEntry]:
        """Return the entries to add.

        Raises:
            ValueError: something is missing, or parts contradict each other.
        """
        if self.principal is None:
            raise ValueError(f"say who: {USER_PREFIX}NAME")
        if not self._permissions():
            raise ValueError("say what: --allow OPERATION or --deny OPERATION")
        if not self.resources:
            raise ValueError("say of what: --topic, --group, --transactional-id or --cluster")
        self._check_patterns()
        for kind, _ in self.resources:
            for _, operation in self._permissions():
                _check_operation(operation, kind)
        return [
            AclEntry(
                principal=self.principal,
                resource_type=kind,
                resource_name=name,
                operation=operation,
                permission=permission,
                pattern_type=self._pattern_of(kind),
                host=self.host or ANY_HOST,
            )
            for kind, name in self.resources
            for permission, operation in self._permissions()
        ]

    def filters(self) -> list[AclFilter]:
        """Return filters for the named entries: those that match any filter. Names are exact unless marked as prefixes.

        Raises:
            ValueError: parts contradict each other.
        """
        self._check_patterns()
        prefixed = PatternType.PREFIXED if self.is_prefixed else None
        resources: Sequence[tuple[ResourceType | None, str | None]] = self.resources or [_ANY]
        permissions: Sequence[tuple[Permission | None, Operation | None]] = self._permissions() or [
            _ANY
        ]
        return [
            AclFilter(
                principal=self.principal,
                resource_type=kind,
                resource_name=name,
                operation=operation,
                permission=permission,
                pattern_type=prefixed if kind is None else self._pattern_of(kind),
                host=self.host,
            )
            for kind, name in resources
            for permission, operation in permissions
        ]

    def _permissions(self) -> list[tuple[Permission, Operation]]:
        return [
            *((Permission.ALLOW, operation) for operation in self.allowed),
            *((Permission.DENY, operation) for operation in self.denied),
        ]

    def _pattern_of(self, kind: ResourceType) -> PatternType:
        is_prefix = self.is_prefixed and kind is not ResourceType.CLUSTER
        return PatternType.PREFIXED if is_prefix else PatternType.LITERAL

    def _check_patterns(self) -> None:
        names = [name for kind, name in self.resources if kind is not ResourceType.CLUSTER]
        if self.is_prefixed and self.resources and not names:
            raise ValueError("--prefixed: the cluster has no other names")
        for name in names:
            if not name:
                raise ValueError("a name is empty; * is every name")
            if name == ANY_NAME and self.is_prefixed:
                raise ValueError("* is every name already: leave out --prefixed")
            if name != ANY_NAME and name.endswith("*"):
                raise ValueError(f"{name!r}: for a prefix, say {name.rstrip('*')} --prefixed")


def _word(text: str, kind: type[W], what: str) -> W:
    try:
        return kind(text.strip().upper().replace("-", "_"))
    except ValueError:
        raise ValueError(f"{text!r} is not a valid {what}: {', '.join(kind)}") from None


def _check_operation(operation: Operation, kind: ResourceType) -> None:
    if operation not in OPERATIONS_OF[kind]:
        there = ", ".join(word for word in Operation if word in OPERATIONS_OF[kind])
        raise ValueError(f"{operation} is not an operation on a {kind}: {there}")
