"""What tasks ask as: a token that the driver makes for them, good for what they do and for a while.

Whoever sees what Spark sends to its executors finds that, and not what the driver has. A token is made when a query is
planned, and another for a batch of a stream when half of its time is over; queries of one process of the driver that
need the same share it. Where a cluster asks nobody, or the driver is no user that can have tokens, tasks get what the
driver has.
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
from milena.producing.retry import is_worth_another_try
from spark_ext.cluster.patience import patiently
from spark_ext.errors import OptionError
from spark_ext.options.credentials import TaskToken, TaskTokenRule, carried

GRANTS_MAX = 100
"""A token has no more: one for more topics is good for all of which the driver may do it."""

NOTE = "tasks of Spark"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TaskCredentials:
    """What tasks ask as until a time (monotonic ms); ``credentials`` None: as the driver."""

    credentials: Credentials | None
    until_ms: float


@dataclass(frozen=True, slots=True)
class _NoToken:
    """Why there is none."""

    why: str


_NOBODY_ASKED = _NoToken("the cluster asks nobody who calls")


def read_grants(topics: Collection[str]) -> tuple[TokenGrant, ...]:
    """What a task needs to read topics."""
    names = sorted(topics) if len(topics) <= GRANTS_MAX else [ANY_NAME]
    return tuple(_topic_grant(name, Operation.READ) for name in names)


def write_grants(topic: str | None) -> tuple[TokenGrant, ...]:
    """What a task needs to write to a topic, or to those that its rows name, which may be made by that."""
    if topic is not None:
        return (_topic_grant(topic, Operation.WRITE),)
    creating = TokenGrant(
        resource_type=ResourceType.CLUSTER, name=CLUSTER_NAME, operations=(Operation.CREATE,)
    )
    return _topic_grant(ANY_NAME, Operation.WRITE, Operation.CREATE), creating


def transaction_grants(
    topic: str | None, transactional_id: str, group: str | None, *, is_prefix: bool
) -> tuple[TokenGrant, ...]:
    """What a task, and the commit, need to write in a transaction, with offsets of a group, or of all that begin so."""
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
    # A group's offset is of a topic, which who commits it has to be allowed to read.
    read = _topic_grant(ANY_NAME if topic is None else topic, Operation.READ)
    return *write_grants(topic), read, transaction, counted


def _topic_grant(name: str, *operations: Operation) -> TokenGrant:
    return TokenGrant(resource_type=ResourceType.TOPIC, name=name, operations=operations)


class TaskTokens:
    """The tokens that one process of the driver has made, by who asked for them, and what for."""

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
        """What tasks ask as, where the driver has ``given``.

        Raises:
            OptionError: they are always to have a token, and there can be none.
            ClientError: the cluster does not answer, or does not know the driver.
            BadCredentialsError: a file of a secret cannot be read.
        """
        if rule.use is TaskToken.NEVER or given.is_anonymous:
            return carried(given)
        # What is in a file now: a token is deleted with the one that it was made with.
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
        # By the cluster's clock; a token that was made with one lives no longer than that.
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
        # A release that knows no access control.
        return _NOBODY_ASKED
    if access.mode == AccessMode.OFF:
        return _NOBODY_ASKED
    name = access.user
    if name is None:
        return _NoToken(f"{access.principal} is no user of the cluster's own, and has no tokens")

    async def make(some: tuple[TokenGrant, ...]) -> NewToken:
        return await patiently(
            lambda: client.admin.access.create_token(
                name, note=NOTE, lifetime_ms=lifetime_ms, grants=some
            )
        )

    try:
        try:
            return await make(grants)
        except NotPermittedError:
            # A token with grants makes none for more than they say: one with the same, then.
            return await make(())
    except CredentialsRefusedError:
        raise
    except AnswerError as error:
        if is_worth_another_try(error):
            raise
        return _NoToken(error.message)


TOKENS = TaskTokens(SystemClock())
"""Of this process: Spark plans batch after batch, and query after query, in the same ones."""
