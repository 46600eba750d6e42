"""Access control entries: DescribeAcls (29), CreateAcls (30), DeleteAcls (31). They are those of ``/v3/…/acls``.

Source: KIP-140, KIP-290 (patterns).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import groupby
from typing import Any, TypeVar

from http_api.access.hosts import plain_host
from http_api.access.port import AclSelection
from http_api.protocol.kafka_codes import KafkaCode
from milena.model.access import ANY_HOST, Operation, PatternType, Permission, ResourceType
from milena.model.errors import MilenaError
from milena.model.turns import one_turn
from node.access.service import check_acl
from node.config.budgets import LONG_PROPOSE_MS
from node.kafka.apis.api import Body, KafkaCall, KafkaServices, serves
from node.kafka.apis.items import ITEMS_MAX, ItemError, each, error_fields, invalid, too_many
from node.kafka.rights import NUMBERS, needs
from node.kafka.wire import cold
from raft_meta.machine.access.access import ACLS_PER_REQUEST_MAX
from raft_meta.machine.image import Acl

ANY = 1
"""The number that stands for all values in a filter."""
MATCH = 2
"""The pattern type of a filter for all entries that apply to a resource."""
_TYPES = {
    2: ResourceType.TOPIC,
    3: ResourceType.GROUP,
    4: ResourceType.CLUSTER,
    5: ResourceType.TRANSACTIONAL_ID,
}
_PATTERNS = {3: PatternType.LITERAL, 4: PatternType.PREFIXED}
_OPERATIONS = {2: Operation.ALL, **{number: word for word, number in NUMBERS.items()}}
_PERMISSIONS = {2: Permission.DENY, 3: Permission.ALLOW}
W = TypeVar("W", bound=StrEnum)


def _word(number: int, words: Mapping[int, W], what: str) -> W:
    word = words.get(number)
    if word is None:
        known = ", ".join(f"{key} ({word})" for key, word in sorted(words.items()))
        raise invalid(f"There is no {what} {number} here: use one of {known}.")
    return word


def _wanted(number: int, words: Mapping[int, W], what: str) -> W | None:
    return None if number == ANY else _word(number, words, what)


def _selection(
    asked: cold.Message,
) -> AclSelection:
    """Return the filter of a request.

    Raises:
        ItemError: a number in it means nothing.
    """
    is_match = asked.pattern_type_filter == MATCH
    host = asked.host_filter
    return AclSelection(
        principal=asked.principal_filter,
        resource_type=_wanted(asked.resource_type_filter, _TYPES, "resource type"),
        pattern_type=None
        if is_match
        else _wanted(asked.pattern_type_filter, _PATTERNS, "pattern type"),
        name=asked.resource_name_filter,
        operation=_wanted(asked.operation, _OPERATIONS, "operation"),
        permission=_wanted(asked.permission_type, _PERMISSIONS, "permission"),
        host=None if host is None else plain_host(host),
        is_match=is_match,
    )


def _number(words: Mapping[int, StrEnum], word: str) -> int:
    return next(number for number, known in words.items() if known == word)


def _resource(acl: Acl) -> dict[str, Any]:
    return {
        "resource_type": _number(_TYPES, acl.resource_type),
        "resource_name": acl.name,
        "pattern_type": _number(_PATTERNS, acl.pattern_type),
    }


def _entry(acl: Acl) -> dict[str, Any]:
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": _number(_OPERATIONS, acl.operation),
        "permission_type": _number(_PERMISSIONS, acl.permission),
    }


# -- DescribeAcls ----------------------------------------------------------------------------------


@serves(29, "DescribeAcls", versions=(1, 3), access=needs("DESCRIBE CLUSTER"))
async def _describe_acls(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    acls: Sequence[Acl] = ()
    result: object = None
    try:
        call.rights.authorize_cluster(Operation.DESCRIBE)
        wanted = _selection(request)
        await services.metadata.current_image()
        acls = await services.access.port.acls(wanted)
    except (ItemError, MilenaError) as error:
        result = ItemError.of(error)

    def pattern(acl: Acl) -> tuple[str, str, str]:
        return acl.resource_type, acl.name, acl.pattern_type

    rows = []
    for _, found in groupby(sorted(acls, key=pattern), key=pattern):
        of_one = list(found)
        rows.append(_resource(of_one[0]) | {"acls": [_entry(acl) for acl in of_one]})
    return call.answer({**error_fields(call, result), "resources": rows})


# -- CreateAcls ------------------------------------------------------------------------------------


@serves(30, "CreateAcls", versions=(1, 3), access=needs("ALTER CLUSTER", is_strict=True))
async def _create_acls(services: KafkaServices, call: KafkaCall) -> Body:
    asked = call.message().creations

    async def create(some: Sequence[cold.Message]) -> list[ItemError | None]:
        await one_turn()
        errors: list[ItemError | None] = []
        acls: list[Acl] = []
        for one in some:
            try:
                call.rights.authorize_cluster(Operation.ALTER)
                acls.append(_acl(one))
                errors.append(None)
            except (ItemError, MilenaError) as error:
                errors.append(ItemError.of(error))
        failed: ItemError | None = None
        try:
            if acls:
                await services.access.port.add_acls(acls)
        except MilenaError as error:
            failed = ItemError.of(error)
        return [error or failed for error in errors]

    # One command for many: with thousands of entries, one for each would take longer than clients wait.
    parts = [
        asked[start : start + ACLS_PER_REQUEST_MAX]
        for start in range(0, len(asked), ACLS_PER_REQUEST_MAX)
    ]
    rows: list[ItemError | None] = []
    if len(asked) > ITEMS_MAX:
        rows, parts = [too_many(len(asked))] * len(asked), []
    for part, found in zip(
        parts, await each(parts, create, timeout_ms=LONG_PROPOSE_MS), strict=True
    ):
        rows += [found] * len(part) if isinstance(found, ItemError) else found
    return call.answer({"results": [error_fields(call, row) for row in rows]})


def _acl(asked: cold.Message) -> Acl:
    """Return the entry of a request.

    Raises:
        ItemError, InvalidAccessError: it is not valid.
    """
    acl = Acl(
        principal=asked.principal,
        resource_type=_word(asked.resource_type, _TYPES, "resource type"),
        pattern_type=_word(asked.resource_pattern_type, _PATTERNS, "pattern type"),
        name=asked.resource_name,
        operation=_word(asked.operation, _OPERATIONS, "operation"),
        permission=_word(asked.permission_type, _PERMISSIONS, "permission"),
        host=asked.host if asked.host == ANY_HOST else plain_host(asked.host),
    )
    check_acl(acl)
    return acl


# -- DeleteAcls ------------------------------------------------------------------------------------


@serves(31, "DeleteAcls", versions=(1, 3), access=needs("ALTER CLUSTER", is_strict=True))
async def _delete_acls(services: KafkaServices, call: KafkaCall) -> Body:
    def selection(asked: cold.Message) -> AclSelection:
        call.rights.authorize_cluster(Operation.ALTER)
        wanted = _selection(asked)
        if replace(wanted, is_match=False) == AclSelection():
            raise invalid(
                "To delete all entries at once is hardly meant: name a principal, a resource or something else."
            )
        return wanted

    judged: list[AclSelection | ItemError] = []
    filters = call.message().filters
    for asked in filters:
        try:
            if len(filters) > ITEMS_MAX:
                raise too_many(len(filters))
            judged.append(selection(asked))
        except (ItemError, MilenaError) as error:
            judged.append(ItemError.of(error))
    wanted = [one for one in judged if isinstance(one, AclSelection)]
    # Together, for the same reason as above.
    (removed,) = await each([wanted], services.access.port.remove_acls, timeout_ms=LONG_PROPOSE_MS)
    rows: Sequence[Sequence[Acl] | ItemError] = (
        [removed] * len(wanted) if isinstance(removed, ItemError) else removed
    )
    found = iter(rows)
    results = [one if isinstance(one, ItemError) else next(found) for one in judged]
    none = {"error_code": KafkaCode.NONE.value, "error_message": None}
    return call.answer(
        {
            "filter_results": [
                {
                    **error_fields(call, result),
                    "matching_acls": []
                    if isinstance(result, ItemError)
                    else [none | _resource(acl) | _entry(acl) for acl in result],
                }
                for result in results
            ]
        }
    )


APIS = (_describe_acls, _create_acls, _delete_acls)
