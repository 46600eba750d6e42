"""The table of endpoints of consumer groups."""

from functools import partial

from http_api.access.needs import IN_ANSWER, on_group
from http_api.describing import pages
from http_api.describing.error_sets import (
    COORDINATOR_ERRORS,
    GROUP_CHANGE_ERRORS,
    GROUP_ERRORS,
    LEADER_ERRORS,
    PARTITION_ERRORS,
    RESET_ERRORS,
)
from http_api.groups import offsets
from http_api.native.groups import handlers as groups
from http_api.protocol.errors import InvalidFieldError
from http_api.serving.endpoint import Answer, Body, Route, Tag, json_content, ok
from http_api.shapes import groups as shapes
from milena.model import errors as e
from milena.model.access import Operation

_MEMBER_ERRORS = (e.MemberNotFoundError, e.MemberFencedError, e.StaleMemberEpochError)

_group_route = partial(Route, tag=Tag.GROUPS)

GROUP_ROUTES = (
    _group_route(
        "GET /groups",
        "listGroups",
        groups.list_groups,
        "All consumer groups",
        ok(shapes.GROUPS, "The groups, without members and offsets"),
        own_params=pages.page_params(groups.SORT),
        access=IN_ANSWER,
        errors=(e.NoQuorumError,),
    ),
    _group_route(
        "GET /groups/{group}",
        "getGroup",
        groups.get_group,
        "A group: its members and what it has committed",
        ok(shapes.GROUP, "The group"),
        access=on_group(Operation.DESCRIBE, is_filtered=True),
        errors=GROUP_ERRORS,
    ),
    _group_route(
        "GET /groups/{group}/members",
        "listGroupMembers",
        groups.list_members,
        "A group, and a page of its members",
        ok(shapes.MEMBER_PAGE, "The group, with the members of the page"),
        own_params=(*pages.page_params(groups.MEMBER_SORT, is_whole=False), pages.PARTITIONS_PARAM),
        access=on_group(Operation.DESCRIBE, is_filtered=True),
        errors=GROUP_ERRORS,
    ),
    _group_route(
        "GET /groups/{group}/lags",
        "listGroupLags",
        groups.list_lags,
        "A group, and how far it is behind in a page of its partitions",
        ok(shapes.LAG_PAGE, "The group, with the partitions of the page"),
        own_params=pages.page_params(groups.LAG_SORT, is_whole=False),
        access=on_group(Operation.DESCRIBE, is_filtered=True),
        description=(
            "By `lag` and `end_offset` the leaders of all its partitions are asked; else of those of the page alone."
        ),
        errors=GROUP_ERRORS,
    ),
    _group_route(
        "DELETE /groups/{group}",
        "deleteGroup",
        groups.delete,
        "Forget a group and its offsets",
        (Answer(status=204, description="It is gone"),),
        access=on_group(Operation.DELETE),
        description="Refused while it has members.",
        errors=(*GROUP_ERRORS, *GROUP_CHANGE_ERRORS, *COORDINATOR_ERRORS),
    ),
    _group_route(
        "POST /groups/{group}/heartbeat",
        "groupHeartbeat",
        groups.heartbeat,
        "Join a group, stay in it, or leave it",
        ok(shapes.HEARTBEAT_ANSWER, "What the member is to read, and when to come again"),
        own_params=(groups.WAIT_MS.param,),
        access=on_group(Operation.READ, has_more=True),
        description=(
            "What the member is not assigned any more it stops reading, and says so by a heartbeat whose `owned` lacks "
            "it; only then does another get it."
        ),
        body=Body(content=json_content(shapes.HEARTBEAT)),
        errors=(
            *_MEMBER_ERRORS,
            InvalidFieldError,
            e.InvalidConsumerError,
            e.GroupChangedError,
            *COORDINATOR_ERRORS,
        ),
    ),
    _group_route(
        "GET /groups/{group}/offsets",
        "getGroupOffsets",
        groups.get_offsets,
        "What a group has committed",
        ok(shapes.GROUP_OFFSETS, "Of all its partitions, or of one topic"),
        own_params=(groups.TOPIC,),
        access=on_group(Operation.DESCRIBE, is_filtered=True),
        errors=GROUP_ERRORS,
    ),
    _group_route(
        "POST /groups/{group}/offsets",
        "commitGroupOffsets",
        groups.commit,
        "Commit offsets",
        (Answer(status=204, description="All are committed"),),
        access=on_group(Operation.READ, has_more=True),
        description=(
            "As a member, or, with neither `member_id` nor `member_epoch`, for a group that has no members."
        ),
        body=Body(content=json_content(shapes.COMMIT)),
        errors=(
            *_MEMBER_ERRORS,
            *PARTITION_ERRORS,
            InvalidFieldError,
            e.InvalidConsumerError,
            e.GroupNotEmptyError,
            e.GroupChangedError,
            *COORDINATOR_ERRORS,
        ),
    ),
    _group_route(
        "GET /groups/{group}/offsets:reset",
        "previewGroupReset",
        offsets.preview_reset,
        "Where a reset would let a group go on",
        ok(shapes.RESET_PREVIEW, "Of the page's partitions, now and then; nothing is changed"),
        own_params=(offsets.RESET_TOPIC, offsets.TO, *pages.CUT_PARAMS),
        access=on_group(Operation.DESCRIBE, has_more=True),
        errors=(
            *PARTITION_ERRORS,
            *LEADER_ERRORS,
            e.InvalidConsumerError,
            e.NoQuorumError,
            e.OffsetOutOfRangeError,
        ),
    ),
    _group_route(
        "POST /groups/{group}/offsets:reset",
        "resetGroupOffsets",
        offsets.reset,
        "Let a group go on elsewhere",
        ok(shapes.GROUP_OFFSETS, "What is committed now, of these partitions"),
        access=on_group(Operation.READ, has_more=True),
        description="Refused while it has members.",
        body=Body(content=json_content(shapes.RESET)),
        errors=RESET_ERRORS,
    ),
)
