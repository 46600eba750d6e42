"""Terms of access control, and which operation implies which, as in Kafka (KIP-11, KIP-290)."""

import shlex
from enum import StrEnum


class AccessMode(StrEnum):
    """Whether a cluster checks credentials and permissions."""

    OFF = "off"
    """Every caller may do everything; credentials are ignored."""
    OPTIONAL = "optional"
    """A caller without credentials is ``ANONYMOUS``. A request that would be refused is logged and carried out."""
    REQUIRED = "required"


class Operation(StrEnum):
    """An operation on a resource. ``ALL`` occurs in access control entries only."""

    ALL = "ALL"
    READ = "READ"
    WRITE = "WRITE"
    CREATE = "CREATE"
    DELETE = "DELETE"
    ALTER = "ALTER"
    DESCRIBE = "DESCRIBE"
    CLUSTER_ACTION = "CLUSTER_ACTION"
    DESCRIBE_CONFIGS = "DESCRIBE_CONFIGS"
    ALTER_CONFIGS = "ALTER_CONFIGS"
    IDEMPOTENT_WRITE = "IDEMPOTENT_WRITE"


class ResourceType(StrEnum):
    """A type of protected resource. The only resource of type ``CLUSTER`` is ``CLUSTER_NAME``."""

    TOPIC = "TOPIC"
    GROUP = "GROUP"
    CLUSTER = "CLUSTER"
    TRANSACTIONAL_ID = "TRANSACTIONAL_ID"


class PatternType(StrEnum):
    """How the name in an entry matches a resource's name; a literal ``ANY_NAME`` matches every name."""

    LITERAL = "LITERAL"
    PREFIXED = "PREFIXED"


class ScramMechanism(StrEnum):
    """A mechanism with which clients of the Kafka interface prove that they know a password (RFC 5802, RFC 7677)."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def hash_name(self) -> str:
        """The name of the hash function, as in ``hashlib``."""
        return self.value.removeprefix("SCRAM-").replace("-", "").lower()

    @property
    def key_bytes(self) -> int:
        """The size of a key and of a proof."""
        return {ScramMechanism.SHA_256: 32, ScramMechanism.SHA_512: 64}[self]


class Permission(StrEnum):
    """The effect of an entry. An entry that denies wins over all that allow."""

    ALLOW = "ALLOW"
    DENY = "DENY"


CLUSTER_NAME = "kafka-cluster"
ANY_NAME = "*"
ANY_HOST = "*"
USER_PREFIX = "User:"
GROUP_PREFIX = "Group:"
PRINCIPAL_NAME = r"[A-Za-z0-9._@:/+=-]{1,255}"
"""Regular expression of a name after a prefix. Cluster users have no colon; externally authenticated ones have."""
USER_NAME = r"[A-Za-z0-9._@/+=-]{1,255}"
"""Regular expression of a user's name."""
ANY_PRINCIPAL = "User:*"
ANONYMOUS = "User:ANONYMOUS"

ALLOWED_BY = {
    **{operation: frozenset({operation, Operation.ALL}) for operation in Operation},
    Operation.DESCRIBE: frozenset(
        {
            Operation.DESCRIBE,
            Operation.READ,
            Operation.WRITE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.ALL,
        }
    ),
    Operation.DESCRIBE_CONFIGS: frozenset(
        {Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.ALL}
    ),
}
"""For each operation, those whose entries allow it. An entry denies an operation by naming it or ``ALL``."""

OPERATIONS_OF = {
    ResourceType.TOPIC: frozenset(
        {
            Operation.ALL,
            Operation.READ,
            Operation.WRITE,
            Operation.CREATE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        }
    ),
    ResourceType.GROUP: frozenset(
        {Operation.ALL, Operation.READ, Operation.DELETE, Operation.DESCRIBE}
    ),
    ResourceType.CLUSTER: frozenset(
        {
            Operation.ALL,
            Operation.CREATE,
            Operation.ALTER,
            Operation.DESCRIBE,
            Operation.CLUSTER_ACTION,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
            Operation.IDEMPOTENT_WRITE,
        }
    ),
    ResourceType.TRANSACTIONAL_ID: frozenset({Operation.ALL, Operation.WRITE, Operation.DESCRIBE}),
}
"""The operations that an entry for a type of resource may name."""


def allowing_command(
    principal: str, operation: Operation, kind: ResourceType, name: str | None
) -> str:
    """Return the command that allows the operation. ``name``: of the resource; None: any one of this type would do."""
    option = f"--{kind.lower().replace('_', '-')}"
    resource = [option] if kind is ResourceType.CLUSTER else [option, name or "NAME"]
    return shlex.join(["milena", "acls", "add", principal, "--allow", operation, *resource])
