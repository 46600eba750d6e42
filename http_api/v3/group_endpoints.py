"""v3: the table of endpoints of consumer groups."""

from functools import partial

from http_api.access.needs import IN_ANSWER, on_group
from http_api.describing.error_sets import (
    COORDINATOR_ERRORS,
    GROUP_CHANGE_ERRORS,
    GROUP_ERRORS,
    LEADER_ERRORS,
    PARTITION_ERRORS,
    RESET_ERRORS,
)
from http_api.protocol.errors import ResourceNotFoundError
from http_api.serving.endpoint import Body, Route, Tag, json_content, ok
from http_api.shapes import groups as shapes
from http_api.shapes import v3
from http_api.v3 import groups
from http_api.v3.rows import AUTHORIZED_OPERATIONS, CLUSTER, DONE
from milena.model.access import Operation
from milena.model.errors import MemberNotFoundError, NoQuorumError

_GROUPS = f"{CLUSTER}/consumer-groups"
_GROUP = f"{_GROUPS}/{{group}}"
_CONSUMER = f"{_GROUP}/consumers/{{consumer}}"
_OF_MEMBER = (*GROUP_ERRORS, MemberNotFoundError)
_OF_LAG = (*GROUP_ERRORS, *LEADER_ERRORS, ResourceNotFoundError)

_group_route = partial(Route, tag=Tag.V3_GROUPS)

GROUP_ROUTES = (
    _group_route(
        f"GET {_GROUPS}",
        "v3ListConsumerGroups",
        groups.list_groups,
        "All consumer groups",
        ok(v3.GROUPS, "The groups, by id"),
        own_params=(AUTHORIZED_OPERATIONS,),
        access=IN_ANSWER,
        errors=(NoQuorumError,),
    ),
    _group_route(
        f"GET {_GROUP}",
        "v3GetConsumerGroup",
        groups.get_group,
        "A consumer group",
        ok(v3.GROUP, "The group"),
        own_params=(AUTHORIZED_OPERATIONS,),
        access=on_group(Operation.DESCRIBE),
        errors=GROUP_ERRORS,
    ),
    _group_route(
        f"DELETE {_GROUP}",
        "v3DeleteConsumerGroup",
        groups.delete_group,
        "Forget a group and its offsets",
        DONE,
        access=on_group(Operation.DELETE),
        description="Refused while it has members.",
        errors=(*GROUP_ERRORS, *GROUP_CHANGE_ERRORS, *COORDINATOR_ERRORS),
    ),
    _group_route(
        f"POST {_GROUP}/offsets:reset",
        "v3ResetConsumerGroupOffsets",
        groups.reset_offsets,
        "Let a group go on elsewhere",
        ok(shapes.GROUP_OFFSETS, "What is committed now, of these partitions"),
        access=on_group(Operation.READ, has_more=True),
        description="Refused while it has members.",
        body=Body(content=json_content(shapes.RESET)),
        errors=RESET_ERRORS,
    ),
    _group_route(
        f"GET {_GROUP}/consumers",
        "v3ListConsumers",
        groups.list_consumers,
        "Members of a group",
        ok(v3.CONSUMERS, "The members"),
        access=on_group(Operation.DESCRIBE),
        errors=GROUP_ERRORS,
    ),
    _group_route(
        f"GET {_CONSUMER}",
        "v3GetConsumer",
        groups.get_consumer,
        "A member of a group",
        ok(v3.CONSUMER, "The member"),
        access=on_group(Operation.DESCRIBE),
        errors=_OF_MEMBER,
    ),
    _group_route(
        f"GET {_CONSUMER}/assignments",
        "v3ListConsumerAssignments",
        groups.list_assignments,
        "What a member reads",
        ok(v3.CONSUMER_ASSIGNMENTS, "The partitions"),
        access=on_group(Operation.DESCRIBE, is_filtered=True),
        errors=_OF_MEMBER,
    ),
    _group_route(
        f"GET {_CONSUMER}/assignments/{{topic}}/partitions/{{partition}}",
        "v3GetConsumerAssignment",
        groups.get_assignment,
        "A partition that a member reads",
        ok(v3.CONSUMER_ASSIGNMENT, "The partition"),
        access=on_group(Operation.DESCRIBE, is_filtered=True),
        errors=(*_OF_MEMBER, ResourceNotFoundError),
    ),
    _group_route(
        f"GET {_GROUP}/lag-summary",
        "v3GetConsumerGroupLagSummary",
        groups.get_lag_summary,
        "How far a group is behind",
        ok(v3.LAG_SUMMARY, "In all, and where most"),
        access=on_group(Operation.DESCRIBE, is_filtered=True),
        errors=_OF_LAG,
    ),
    _group_route(
        f"GET {_GROUP}/lags",
        "v3ListConsumerLags",
        groups.list_lags,
        "How far a group is behind, partition by partition",
        ok(v3.LAGS, "The partitions where it has committed something"),
        access=on_group(Operation.DESCRIBE, is_filtered=True),
        errors=(*GROUP_ERRORS, *LEADER_ERRORS),
    ),
    _group_route(
        f"GET {_GROUP}/lags/{{topic}}/partitions/{{partition}}",
        "v3GetConsumerLag",
        groups.get_lag,
        "How far a group is behind in one partition",
        ok(v3.LAG, "The partition"),
        access=on_group(Operation.DESCRIBE, is_filtered=True),
        errors=(*_OF_LAG, *PARTITION_ERRORS),
    ),
)
