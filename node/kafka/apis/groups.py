"""Classic consumer groups: FindCoordinator (10), JoinGroup (11), Heartbeat (12), LeaveGroup (13), SyncGroup (14).

A group's coordinator serves its members. Another node answers NOT_COORDINATOR, and the client looks for the coordinator
again. The rules of groups are in ``node.groups.classic``; these handlers only translate.

Source: Kafka's protocol guide, KIP-345 (static members), KIP-394 (member ids), KIP-699 (several coordinators in one
request), KIP-814 (skipped assignments).
"""

from typing import Any

from http_api.protocol.errors import kafka_code_of
from http_api.protocol.kafka_codes import KafkaCode
from milena.model.access import Operation, ResourceType
from milena.model.errors import (
    InvalidConsumerError,
    MemberIdRequiredError,
    MilenaError,
    NotCoordinatorError,
    UnavailableError,
)
from node.groups.classic.calls import JoinAnswer, JoinRequest, LeavingMember, SyncRequest
from node.kafka.apis.api import Body, KafkaCall, KafkaServices, serves
from node.kafka.apis.items import ITEMS_MAX
from node.kafka.apis.metadata import reachable_at
from node.kafka.rights import needs
from node.kafka.wire.primitives import MalformedFrameError
from raft_meta.machine.groups import group_rules
from raft_meta.machine.groups.coordinators import chosen, coordinator_of

MEMBERSHIP_BYTES_MAX = 1 << 20
"""The largest JoinGroup or SyncGroup request: the subscription of one member, or the assignments of all."""
GROUP, TRANSACTION = 0, 1
"""Types of coordinators."""


def group_code_of(error: MilenaError) -> KafkaCode:
    """Return Kafka's code for an error of a group request.

    The retriable codes of partitions would stop a group client. It looks for the coordinator again instead.
    """
    if isinstance(error, UnavailableError) and not isinstance(error, NotCoordinatorError):
        return KafkaCode.COORDINATOR_NOT_AVAILABLE
    return KafkaCode(kafka_code_of(error))


def member_code_of(error: MilenaError) -> KafkaCode:
    """Return Kafka's code for an error of a member's request. A member may repeat it whether or not it took effect."""
    code = group_code_of(error)
    is_unknown = code is KafkaCode.REQUEST_TIMED_OUT
    return KafkaCode.COORDINATOR_NOT_AVAILABLE if is_unknown else code


async def not_current(services: KafkaServices) -> MilenaError | None:
    """Bring this node's image up to date; return the error if no majority answers.

    A description that comes from an older image may lack a group or a member that another node has answered for.
    """
    try:
        await services.metadata.current_image()
    except MilenaError as error:
        return error
    return None


def check_count(count: int) -> None:
    """Refuse a frame with too many items.

    Raises:
        MalformedFrameError: there are more than ``ITEMS_MAX``.
    """
    if count > ITEMS_MAX:
        raise MalformedFrameError(
            f"a group request has {count} items, at most {ITEMS_MAX} are read"
        )


def invalid_group(group_id: str) -> KafkaCode | None:
    """Return the code for an invalid group id; None: it is valid."""
    try:
        group_rules.check_group_id(group_id)
    except InvalidConsumerError:
        return KafkaCode.INVALID_GROUP_ID
    return None


def forbidden_group(call: KafkaCall, operation: Operation, group_id: str) -> KafkaCode | None:
    """Return the code if the client may not do this with the group; None: it may."""
    may = call.rights.permits(operation, ResourceType.GROUP, group_id)
    return None if may else KafkaCode.GROUP_AUTHORIZATION_FAILED


def check_share(services: KafkaServices, call: KafkaCall, group_id: str) -> None:
    """Refuse a new group, or offsets in a group, if the caller has created enough already.

    Raises:
        GroupLimitError: the message says what to delete.
    """
    image, principal = services.metadata.image, call.rights.known_principal
    services.access.group_shares.check(image, principal, (group_id,))


# -- FindCoordinator -------------------------------------------------------------------------------


@serves(
    10,
    "FindCoordinator",
    versions=(0, 6),
    access=needs("DESCRIBE GROUP", "DESCRIBE TRANSACTIONAL_ID"),
)
async def _find_coordinator(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    kind = request.key_type if call.version >= 1 else GROUP
    if call.version < 4:
        return call.answer(_coordinator(services, call, kind, request.key))
    check_count(len(request.coordinator_keys))
    return call.answer(
        {
            "coordinators": [
                {"key": key, **_coordinator(services, call, kind, key)}
                for key in request.coordinator_keys
            ]
        }
    )


def _coordinator(services: KafkaServices, call: KafkaCall, kind: int, key: str) -> dict[str, Any]:
    code, broker_id, host, port = _found(services, call, kind, key)
    return {
        "node_id": broker_id,
        "host": host,
        "port": port,
        "error_code": call.note(code),
        "error_message": None,
    }


def _found(
    services: KafkaServices, call: KafkaCall, kind: int, key: str
) -> tuple[KafkaCode, int, str, int]:
    image, own = services.metadata.image, services.metadata.node_id
    here = call.address
    wrong: KafkaCode | None = KafkaCode.INVALID_REQUEST
    if kind == GROUP:
        wrong = forbidden_group(call, Operation.DESCRIBE, key) or invalid_group(key)
    elif kind == TRANSACTION:
        may = call.rights.permits(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, key)
        wrong = None if may else KafkaCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if wrong is not None:
        return wrong, -1, "", -1
    # Every node serves all transactional ids, so the coordinator of one is a node that the client can reach.
    is_group = kind == GROUP
    broker_id = coordinator_of(image, key) if is_group else chosen(reachable(services, call), key)
    if broker_id == own:
        return KafkaCode.NONE, own, here.host, here.port
    broker = None if broker_id is None else image.brokers.get(broker_id)
    address = reachable_at(broker, here.listener)
    if broker_id is None or address is None:
        return KafkaCode.COORDINATOR_NOT_AVAILABLE, -1, "", -1
    return KafkaCode.NONE, broker_id, *address


def reachable(services: KafkaServices, call: KafkaCall) -> list[int]:
    """Return the live brokers that the client of a request can reach."""
    image, own = services.metadata.image, services.metadata.node_id
    return [
        broker.broker_id
        for broker in image.brokers.values()
        if not broker.is_fenced
        and not broker.is_draining
        and (broker.broker_id == own or broker.kafka_address(call.address.listener) is not None)
    ]


# -- members ---------------------------------------------------------------------------------------


@serves(
    11, "JoinGroup", versions=(0, 9), access=needs("READ GROUP"), bytes_max=MEMBERSHIP_BYTES_MAX
)
async def _join_group(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    check_count(len(request.protocols))
    group_id = request.group_id
    wrong = forbidden_group(call, Operation.READ, group_id) or invalid_group(group_id)
    if wrong is not None:
        return _not_joined(call, wrong, request.member_id)
    try:
        check_share(services, call, group_id)
        joined = await services.groups.join(
            JoinRequest(
                group_id=request.group_id,
                member_id=request.member_id,
                instance_id=request.group_instance_id if call.version >= 5 else None,
                client_id=call.client_id,
                host=call.host,
                session_ms=request.session_timeout_ms,
                # Version 0 has one timeout for both.
                rebalance_ms=request.rebalance_timeout_ms
                if call.version >= 1
                else request.session_timeout_ms,
                protocol_type=request.protocol_type,
                protocols=tuple((one.name, bytes(one.metadata)) for one in request.protocols),
                needs_known_id=call.version >= 4,
                can_skip_assignment=call.version >= 9,
            )
        )
    except MemberIdRequiredError as error:
        return _not_joined(call, KafkaCode.MEMBER_ID_REQUIRED, error.member_id)
    except MilenaError as error:
        return _not_joined(call, member_code_of(error), request.member_id)
    # The wait may have been long, and the response names other members.
    if (wrong := forbidden_group(call, Operation.READ, group_id)) is not None:
        return _not_joined(call, wrong, request.member_id)
    return call.answer(_joined(joined))


def _joined(joined: JoinAnswer) -> dict[str, Any]:
    return {
        "error_code": KafkaCode.NONE,
        "generation_id": joined.generation,
        "protocol_type": joined.protocol_type,
        "protocol_name": joined.protocol,
        "leader": joined.leader,
        "skip_assignment": joined.skips_assignment,
        "member_id": joined.member_id,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "metadata": member.metadata,
            }
            for member in joined.members
        ],
    }


def _not_joined(call: KafkaCall, code: KafkaCode, member_id: str) -> Body:
    return call.answer(
        {
            "error_code": call.note(code),
            "generation_id": -1,
            "protocol_type": None,
            "protocol_name": "",
            "leader": "",
            "member_id": member_id,
            "members": [],
        }
    )


@serves(
    14, "SyncGroup", versions=(0, 5), access=needs("READ GROUP"), bytes_max=MEMBERSHIP_BYTES_MAX
)
async def _sync_group(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    check_count(len(request.assignments))
    if (wrong := forbidden_group(call, Operation.READ, request.group_id)) is not None:
        return _not_synced(call, wrong)
    try:
        synced = await services.groups.sync(
            SyncRequest(
                group_id=request.group_id,
                member_id=request.member_id,
                generation=request.generation_id,
                instance_id=request.group_instance_id if call.version >= 3 else None,
                protocol_type=request.protocol_type if call.version >= 5 else None,
                protocol=request.protocol_name if call.version >= 5 else None,
                assignments={one.member_id: bytes(one.assignment) for one in request.assignments},
            )
        )
    except MilenaError as error:
        return _not_synced(call, member_code_of(error))
    if (wrong := forbidden_group(call, Operation.READ, request.group_id)) is not None:
        return _not_synced(call, wrong)
    return call.answer(
        {
            "error_code": KafkaCode.NONE,
            "protocol_type": synced.protocol_type,
            "protocol_name": synced.protocol,
            "assignment": synced.assignment,
        }
    )


def _not_synced(call: KafkaCall, code: KafkaCode) -> Body:
    return call.answer(
        {
            "error_code": call.note(code),
            "protocol_type": None,
            "protocol_name": None,
            "assignment": b"",
        }
    )


@serves(12, "Heartbeat", versions=(0, 4), access=needs("READ GROUP"))
async def _heartbeat(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    if (wrong := forbidden_group(call, Operation.READ, request.group_id)) is not None:
        return call.answer({"error_code": call.note(wrong)})
    code = KafkaCode.NONE
    try:
        await services.groups.heartbeat(
            request.group_id,
            request.member_id,
            request.generation_id,
            request.group_instance_id if call.version >= 3 else None,
        )
    except MilenaError as error:
        code = member_code_of(error)
    return call.answer({"error_code": call.note(code)})


@serves(13, "LeaveGroup", versions=(0, 5), access=needs("READ GROUP"))
async def _leave_group(services: KafkaServices, call: KafkaCall) -> Body:
    request = call.message()
    if call.version < 3:
        leaving = [LeavingMember(member_id=request.member_id)]
    else:
        check_count(len(request.members))
        leaving = [
            LeavingMember(member_id=one.member_id, instance_id=one.group_instance_id)
            for one in request.members
        ]
    if (wrong := forbidden_group(call, Operation.READ, request.group_id)) is not None:
        return call.answer({"error_code": call.note(wrong), "members": []})
    try:
        outcomes = await services.groups.leave(request.group_id, leaving)
    except MilenaError as error:
        return call.answer({"error_code": call.note(member_code_of(error)), "members": []})
    codes = [KafkaCode.NONE if one.error is None else member_code_of(one.error) for one in outcomes]
    rows = [
        {
            "member_id": one.member.member_id,
            "group_instance_id": one.member.instance_id,
            "error_code": call.note(code),
        }
        for one, code in zip(outcomes, codes, strict=True)
    ]
    # Before version 3 a request has one member, and its result is that of the request.
    return call.answer({"error_code": codes[0] if call.version < 3 else 0, "members": rows})


APIS = (_find_coordinator, _join_group, _heartbeat, _leave_group, _sync_group)
