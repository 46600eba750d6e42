"""SCRAM credentials: DescribeUserScramCredentials (50), AlterUserScramCredentials (51). See ``milena users``.

A client sends no password, but what it derived from one. So the user's password for the API and for PLAIN stays.

Source: KIP-554.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from http_api.protocol.kafka_codes import KafkaCode
from http_api.serving.routing import check_no_dots
from milena.model.access import Operation, ResourceType, ScramMechanism
from milena.model.errors import ForbiddenError, InvalidAccessError, MilenaError
from node.access.scram import credential_of_salted
from node.config.budgets import LONG_PROPOSE_MS
from node.kafka.apis.api import Body, KafkaCall, KafkaServices, serves
from node.kafka.apis.items import (
    ITEMS_MAX,
    ItemError,
    each,
    error_fields,
    repeated,
    too_many,
)
from node.kafka.rights import needs
from node.kafka.wire import cold
from raft_meta.machine.access.access import scram_problems
from raft_meta.machine.image import ScramCredential, User

NUMBERS = {ScramMechanism.SHA_256: 1, ScramMechanism.SHA_512: 2}
"""Kafka's numbers of mechanisms."""
_MECHANISMS = {number: mechanism for mechanism, number in NUMBERS.items()}


# -- DescribeUserScramCredentials ------------------------------------------------------------------


@serves(50, "DescribeUserScramCredentials", versions=(0, 0), access=needs("DESCRIBE CLUSTER"))
async def _describe(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    try:
        call.rights.authorize_cluster(Operation.DESCRIBE)
        names = [row.name for row in request.users or ()]
        if len(names) > ITEMS_MAX:
            raise too_many(len(names))
        users = (await services.metadata.current_image()).users
    except (ItemError, MilenaError) as error:
        return call.answer({**error_fields(call, ItemError.of(error)), "results": []})
    if not names:
        names = sorted(name for name, user in users.items() if user.scram)
    twice = repeated(names)
    rows = [
        _row(call, name, users.get(name), is_repeated=name in twice)
        for name in dict.fromkeys(names)
    ]
    return call.answer({**error_fields(call, None), "results": rows})


def _row(call: KafkaCall, name: str, user: User | None, *, is_repeated: bool) -> dict[str, Any]:
    result: ItemError | None = None
    if is_repeated:
        result = _repeated(name)
    elif user is None or not user.scram:
        result = ItemError(
            KafkaCode.RESOURCE_NOT_FOUND, f"There is no user {name} with SCRAM credentials."
        )
    infos = () if user is None or result is not None else user.scram
    return {
        "user": name,
        **error_fields(call, result),
        "credential_infos": [
            {"mechanism": NUMBERS[ScramMechanism(one.mechanism)], "iterations": one.iterations}
            for one in infos
        ],
    }


def _repeated(name: str) -> ItemError:
    return ItemError(
        KafkaCode.DUPLICATE_RESOURCE,
        f"The request names user {name}, or one of its mechanisms, more than once.",
    )


# -- AlterUserScramCredentials ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Changes:
    """The rows of a request that are about one user."""

    name: str
    removed: list[cold.Message] = field(default_factory=list)
    put: list[cold.Message] = field(default_factory=list)


def _mechanism(number: int) -> ScramMechanism:
    found = _MECHANISMS.get(number)
    if found is None:
        known = ", ".join(f"{number} ({mechanism})" for number, mechanism in _MECHANISMS.items())
        raise ItemError(
            KafkaCode.UNSUPPORTED_SASL_MECHANISM,
            f"There is no SCRAM mechanism {number}: use one of {known}.",
        )
    return found


def _credential(asked: cold.Message) -> ScramCredential:
    """Return the credential of a row.

    Raises:
        ItemError: its mechanism does not exist, or a value of it is out of bounds.
    """
    mechanism = _mechanism(asked.mechanism)
    salted = bytes(asked.salted_password)
    if len(salted) != mechanism.key_bytes:
        raise ItemError(
            KafkaCode.UNACCEPTABLE_CREDENTIAL,
            f"A salted password of {mechanism} has {mechanism.key_bytes} bytes, not {len(salted)}.",
        )
    credential = credential_of_salted(
        mechanism, salted, salt=bytes(asked.salt), iterations=asked.iterations
    )
    for problem in scram_problems(credential):
        raise ItemError(KafkaCode.UNACCEPTABLE_CREDENTIAL, problem)
    return credential


def _check_power(call: KafkaCall, user: User | None) -> None:
    """Require a superuser if the user is one, because its credentials give its rights.

    Raises:
        ForbiddenError: the caller is none.
    """
    caller = call.rights.caller
    if user is not None and user.is_superuser and not caller.is_superuser:
        raise ForbiddenError(
            f"only a superuser may change superuser {user.name}, and {caller.principal} is none",
            resource_type=ResourceType.CLUSTER,
        )


@serves(
    51, "AlterUserScramCredentials", versions=(0, 0), access=needs("ALTER CLUSTER", is_strict=True)
)
async def _alter(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    changes: dict[str, _Changes] = {}
    for row in request.deletions:
        changes.setdefault(row.name, _Changes(row.name)).removed.append(row)
    for row in request.upsertions:
        changes.setdefault(row.name, _Changes(row.name)).put.append(row)
    count = len(request.deletions) + len(request.upsertions)

    async def alter(of_user: _Changes) -> None:
        call.rights.authorize_cluster(Operation.ALTER)
        if count > ITEMS_MAX:
            raise too_many(count)
        name = of_user.name
        # All changes of a user are made, or none.
        if repeated(row.mechanism for row in (*of_user.removed, *of_user.put)):
            raise _repeated(name)
        removed = [_mechanism(row.mechanism) for row in of_user.removed]
        put = [_credential(row) for row in of_user.put]
        if name not in services.metadata.image.users:
            check_no_dots("user", name)
        try:
            await services.access.port.alter_scram(
                name, put=put, removed=removed, check=partial(_check_power, call)
            )
        except InvalidAccessError as error:
            raise ItemError(KafkaCode.UNACCEPTABLE_CREDENTIAL, error.message) from error

    results = await each(list(changes.values()), alter, timeout_ms=LONG_PROPOSE_MS)
    return call.answer(
        {
            "results": [
                {"user": name, **error_fields(call, result)}
                for name, result in zip(changes, results, strict=True)
            ]
        }
    )


APIS = (_describe, _alter)
