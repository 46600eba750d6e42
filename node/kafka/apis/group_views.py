"""Groups as tools see them: DescribeGroups (15), ListGroups (16), DeleteGroups (42).

A node lists the groups that it coordinates, of both kinds. Behind one address for all nodes, it lists all groups. Only
groups of Kafka's classic protocol can be described. Tools describe a server group over HTTP.

Source: Kafka's protocol guide, KIP-222 (DeleteGroups), KIP-518 and KIP-848 (filters), KIP-1043 (version 6).
"""

from typing import Any

from http_api.protocol.kafka_codes import KafkaCode
from milena.model.access import Operation, ResourceType
from milena.model.errors import MilenaError
from node.groups.classic.calls import ClassicDescription, ClassicState
from node.kafka.apis.api import Body, KafkaCall, KafkaServices, serves
from node.kafka.apis.groups import (
    check_count,
    forbidden_group,
    group_code_of,
    invalid_group,
    not_current,
)
from node.kafka.rights import needs

_NOT_FOUND_FROM = 6
"""The first version in which a missing group is an error, and not Dead."""


@serves(15, "DescribeGroups", versions=(0, 6), access=needs("DESCRIBE GROUP"))
async def _describe_groups(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    check_count(len(request.groups))
    has_operations = call.version >= 3 and request.include_authorized_operations
    rows = []
    unknown = await not_current(services)
    # Once each: a row may be large, and a request may name one group ten thousand times.
    for group_id in dict.fromkeys(request.groups):
        operations = None
        if has_operations:
            operations = call.rights.operations(ResourceType.GROUP, group_id)
        if (wrong := forbidden_group(call, Operation.DESCRIBE, group_id)) is not None:
            hidden = ClassicDescription(group_id=group_id, state=ClassicState.DEAD)
            error = _error(call, wrong, None, operations)
            rows.append(_described(hidden) | {"group_state": ""} | error)
            continue
        try:
            if unknown is not None:
                raise unknown
            found = await services.groups.describe(group_id)
            code, message = KafkaCode.NONE, None
        except MilenaError as failure:
            found = ClassicDescription(group_id=group_id, state=ClassicState.DEAD)
            code, message = invalid_group(group_id) or group_code_of(failure), failure.message
        if found.state is ClassicState.DEAD and not code and call.version >= _NOT_FOUND_FROM:
            code, message = KafkaCode.GROUP_ID_NOT_FOUND, f"There is no classic group {group_id!r}."
        rows.append(_described(found) | _error(call, code, message, operations))
    return call.answer({"groups": rows})


def _error(
    call: KafkaCall, code: KafkaCode, message: str | None, operations: frozenset[int] | None
) -> dict[str, Any]:
    return {
        "error_code": call.note(code),
        "error_message": message,
        "authorized_operations": operations,
    }


def _described(found: ClassicDescription) -> dict[str, Any]:
    return {
        "group_id": found.group_id,
        "group_state": found.state.value,
        "protocol_type": found.protocol_type,
        "protocol_data": found.protocol,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": f"/{member.host}",  # Kafka's form of an address
                "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
            for member in found.members
        ],
    }


@serves(16, "ListGroups", versions=(0, 5), access=needs(shows="DESCRIBE GROUP"))
async def _list_groups(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    states = {state.lower() for state in request.states_filter} if call.version >= 4 else set()
    kinds = {kind.lower() for kind in request.types_filter} if call.version >= 5 else set()
    rows = []
    is_seen = call.rights.seen(ResourceType.GROUP)
    try:
        groups = await services.groups.groups(is_everywhere=call.address.is_shared)
    except MilenaError as error:
        return call.answer({"error_code": call.note(group_code_of(error)), "groups": []})
    for one in groups:
        if not is_seen(one.group_id):
            continue
        kind = "classic" if one.is_classic else "consumer"
        if (states and one.state.lower() not in states) or (kinds and kind not in kinds):
            continue
        rows.append(
            {
                "group_id": one.group_id,
                "protocol_type": one.protocol_type,
                "group_state": str(one.state),
                "group_type": kind,
            }
        )
    return call.answer({"error_code": KafkaCode.NONE, "groups": rows})


@serves(42, "DeleteGroups", versions=(0, 2), access=needs("DELETE GROUP"))
async def _delete_groups(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    check_count(len(request.groups_names))
    rows = []
    for group_id in dict.fromkeys(request.groups_names):
        wrong = forbidden_group(call, Operation.DELETE, group_id) or invalid_group(group_id)
        code = wrong or KafkaCode.NONE
        if code is KafkaCode.NONE:
            try:
                await services.groups.delete(group_id)
            except MilenaError as error:
                code = group_code_of(error)
        rows.append({"group_id": group_id, "error_code": call.note(code)})
    return call.answer({"results": rows})


APIS = (_describe_groups, _list_groups, _delete_groups)
