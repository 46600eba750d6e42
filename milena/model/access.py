"""Words of access control and what implies what, as Kafka has them (KIP-11, KIP-290)."""

from enum import StrEnum


class AccessMode(StrEnum):
    """How much a cluster asks of those who call it."""

    OFF = "off"
    """Everybody may do everything; credentials are not looked at."""
    OPTIONAL = "optional"
    """Who comes without credentials is ``ANONYMOUS``; refusals are logged, and carried out nevertheless."""
    REQUIRED = "required"


class Operation(StrEnum):
    """What somebody does to a resource. ``ALL`` stands in access control entries only."""

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
    """What is protected. The only resource of type ``CLUSTER`` is ``CLUSTER_NAME``."""

    TOPIC = "TOPIC"
    GROUP = "GROUP"
    CLUSTER = "CLUSTER"
    TRANSACTIONAL_ID = "TRANSACTIONAL_ID"


class PatternType(StrEnum):
    """How the name of an entry is compared with a resource's; a literal ``ANY_NAME`` is every name."""

    LITERAL = "LITERAL"
    PREFIXED = "PREFIXED"


class Permission(StrEnum):
    """What an entry says. One that denies wins over any that allow."""

    ALLOW = "ALLOW"
    DENY = "DENY"


CLUSTER_NAME = "kafka-cluster"
ANY_NAME = "*"
ANY_HOST = "*"
USER_PREFIX = "User:"
GROUP_PREFIX = "Group:"
PRINCIPAL_NAME = r"[A-Za-z0-9._@:/+=-]{1,255}"
"""What may follow either: a regular expression. Users of the cluster have no colon, whom others vouch for have one."""
USER_NAME = r"[A-Za-z0-9._@/+=-]{1,255}"
"""What a user may be called: a regular expression."""
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
"""The operations of entries that allow one. What denies one names it, or ``ALL``."""

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
"""Which operations an entry for a type of resource may name."""
