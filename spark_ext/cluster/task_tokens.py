"""Make the token that tasks authenticate with. It is limited in time, and to what the tasks do.

A program that reads what Spark sends to executors finds this token and not the driver's credentials. The driver makes
a token when it plans a query. A stream gets another token when half of the lifetime is over. Queries of one driver
process that need the same grants share a token. If the cluster has no access control, or the driver is not a user that
can have tokens, tasks get the driver's credentials.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass

from milena.client import Client
from milena.cluster.access_views import AccessView, NewToken, TokenGrant
from milena.cluster.credentials import Credentials
from milena.errors import (
    AnswerError,
    CredentialsRefusedError,
    NotPermittedError,
    TargetNotFoundError,
    is_worth_another_try,
)
from milena.model.access import (
    ANY_NAME,
    CLUSTER_NAME,
    AccessMode,
    Operation,
    PatternType,
    ResourceType,
)
from milena.model.clock import Clock, SystemClock
from spark_ext.cluster.patience import patiently
from spark_ext.errors import OptionError
from spark_ext.options.credentials import TaskToken, TaskTokenRule, carried

GRANTS_MAX = 100
"""The most grants of a token. A query of more topics gets one for topics of any name."""

NOTE = "tasks of Spark"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TaskCredentials:
    """The tasks' credentials until a time (monotonic ms). None means the driver's credentials."""

    credentials: Credentials | None
    until_ms: float


@dataclass(frozen=True, slots=True)
class _NoToken:
    """The reason why tasks have no token."""

    why: str


_NOBODY_ASKED = _NoToken("the cluster asks no caller for credentials")


def read_grants(topics: Collection[str]) -> tuple[TokenGrant, ...]:
    """Return the grants that a task needs to read topics."""
    names = sorted(topics) if len(topics) <= GRANTS_MAX else [ANY_NAME]
    return tuple(_topic_grant(name, Operation.READ) for name in names)


def write_grants(topic: str | None) -> tuple[TokenGrant, ...]:
    """Return the grants to write to a topic; for None, to write to and create the topics that rows name."""
    if topic is not None:
        return (_topic_grant(topic, Operation.WRITE),)
    creating = TokenGrant(
        resource_type=ResourceType.CLUSTER, name=CLUSTER_NAME, operations=(Operation.CREATE,)
    )
    return _topic_grant(ANY_NAME, Operation.WRITE, Operation.CREATE), creating


def transaction_grants(
    topic: str | None, transactional_id: str, group: str | None, *, is_prefix: bool
) -> tuple[TokenGrant, ...]:
    """Return the grants that a task and the commit need in a transaction that may commit a group's offset.

    ``is_prefix``: ``group`` is the prefix of the groups' names.
    """
    transaction = TokenGrant(
        resource_type=ResourceType.TRANSACTIONAL_ID,
        name=transactional_id,
        operations=(Operation.WRITE,),
    )
    if group is None:
        return *write_grants(topic), transaction
    counted = TokenGrant(
        resource_type=ResourceType.GROUP,
        name=group,
        operations=(Operation.READ,),
        pattern_type=PatternType.PREFIXED if is_prefix else PatternType.LITERAL,
    )
    # A commit of a group's offset needs permission to read the offset's topic.
    read = _topic_grant(ANY_NAME if topic is None else topic, Operation.READ)
    return *write_grants(topic), read, transaction, counted


def _topic_grant(name: str, *operations: Operation) -> TokenGrant:
    return TokenGrant(resource_type=ResourceType.TOPIC, name=name, operations=operations)


class TaskTokens:
    """The tokens that one driver process has made, by cluster, credentials, rule and grants."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._found: dict[tuple[object, ...], _TaskCredentials] = {}

    async def credentials(
        self,
        client: Client,
        given: Credentials,
        rule: TaskTokenRule,
        grants: tuple[TokenGrant, ...],
    ) -> Credentials:
        """Return the tasks' credentials if the driver's are ``given``.

        Raises:
            OptionError: the options require tokens for tasks, and the cluster cannot give one.
            ClientError: the cluster does not respond, or does not know the driver.
            BadCredentialsError: a file of a secret cannot be read.
        """
        if rule.use is TaskToken.NEVER or given.is_anonymous:
            return carried(given)
        # The key has the current content of secret files. The cluster deletes a token together with the token that
        # made it, so a new secret needs a new token.
        key = (client.admin.url, carried(given), rule, grants)
        now_ms = self._clock.now_ms()
        found = self._found.get(key)
        if found is None or found.until_ms <= now_ms:
            self._found = {k: f for k, f in self._found.items() if f.until_ms > now_ms}
            found = self._found[key] = await self._find(client, given, rule, grants)
        return carried(given) if found.credentials is None else found.credentials

    async def _find(
        self,
        client: Client,
        given: Credentials,
        rule: TaskTokenRule,
        grants: tuple[TokenGrant, ...],
    ) -> _TaskCredentials:
        asked_ms = self._clock.now_ms()
        made = await _make_token(client, rule.lifetime_ms, grants)
        if isinstance(made, _NoToken):
            if rule.use is TaskToken.ALWAYS:
                raise OptionError(
                    f"milena.taskToken: tasks can have no token of their own: {made.why}; "
                    "with auto they ask as the driver does"
                )
            if made is not _NOBODY_ASKED:
                logger.warning("tasks ask as the driver does, with its secret: %s", made.why)
            return _TaskCredentials(credentials=None, until_ms=asked_ms + rule.lifetime_ms / 2)
        # Both times are by the cluster's clock. If the driver uses a token, the new token expires no later than the
        # driver's. So the lifetime may be shorter than requested.
        view = made.view
        lifetime_ms = (
            rule.lifetime_ms if view.expires_ms is None else view.expires_ms - view.created_ms
        )
        credentials = Credentials(
            token=made.token,
            ca=given.ca,
            cert=given.cert,
            key=given.key,
            client_id=given.client_id,
        )
        return _TaskCredentials(credentials=credentials, until_ms=asked_ms + lifetime_ms / 2)


async def _make_token(
    client: Client, lifetime_ms: int, grants: tuple[TokenGrant, ...]
) -> NewToken | _NoToken:
    try:
        access: AccessView = await patiently(client.admin.access.state)
    except TargetNotFoundError:
        # The node's release has no access control.
        return _NOBODY_ASKED
    if access.mode == AccessMode.OFF:
        return _NOBODY_ASKED
    name = access.user
    if name is None:
        return _NoToken(f"{access.principal} is not a user of the cluster's own, and has no tokens")

    async def make(some: tuple[TokenGrant, ...] | None) -> NewToken:
        return await patiently(
            lambda: client.admin.access.create_token(
                name, note=NOTE, lifetime_ms=lifetime_ms, grants=some
            )
        )

    try:
        try:
            return await make(grants)
        except NotPermittedError:
            # The driver itself uses a token, whose grants do not include ``grants``. Without grants of its own, the
            # new token gets those of the driver's token.
            return await make(None)
    except CredentialsRefusedError:
        raise
    except AnswerError as error:
        if is_worth_another_try(error):
            raise
        return _NoToken(error.message)


TOKENS = TaskTokens(SystemClock())
"""The tokens of this process. Spark plans all batches and queries in the same few processes."""
