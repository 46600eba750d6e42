"""v2: the table of endpoints of REST consumers."""

from functools import partial

from http_api.access.needs import on_group
from http_api.describing.error_sets import (
    CONSUMER_ERRORS,
    COORDINATOR_ERRORS,
    LEADER_ERRORS,
    PARTITION_ERRORS,
)
from http_api.protocol.errors import BodyTimeoutError, InvalidFieldError
from http_api.protocol.media import (
    BINARY_V2_TYPE,
    EVENTS_TYPE,
    JSON_TYPE,
    JSON_V2_TYPE,
    NDJSON_TYPE,
    TEXT_V2_TYPE,
)
from http_api.serving.endpoint import Answer, Body, Content, Route, Tag, ok_v2, v2_content
from http_api.shapes import groups as shapes
from http_api.shapes import v2
from http_api.v2 import consumer_offsets, consumer_records, consumers, tokens
from http_api.v2.fetch import FOLLOW
from milena.model import errors as e
from milena.model.access import Operation

_CONSUMER = "/consumers/{group}/instances/{instance}"
_DONE = (Answer(status=204, description="It is so"),)
_CHOICE_ERRORS = (
    *CONSUMER_ERRORS,
    InvalidFieldError,
    e.InvalidConsumerError,
    e.SubscriptionConflictError,
    e.GroupChangedError,
)
_SEEK_ERRORS = (*_CHOICE_ERRORS, *PARTITION_ERRORS, *LEADER_ERRORS)
_RECORDS: Content = {
    JSON_V2_TYPE: v2.CONSUMER_RECORDS_JSON,
    BINARY_V2_TYPE: v2.RECORDS_BINARY,
    TEXT_V2_TYPE: v2.CONSUMER_RECORDS_TEXT,
    JSON_TYPE: v2.CONSUMER_RECORDS_JSON,
    NDJSON_TYPE: v2.LINES,
    EVENTS_TYPE: v2.EVENTS,
}

_consumer_route = partial(Route, tag=Tag.CONSUMERS)

CONSUMER_ROUTES = (
    _consumer_route(
        "POST /consumers/{group}",
        "createConsumer",
        consumers.create,
        "Make a REST consumer",
        ok_v2(shapes.CONSUMER, "Its name, and what its paths begin with; every node answers there"),
        access=on_group(Operation.READ),
        description=(
            "It outlives the node that made it, and is deleted when no request names it for five minutes. What other "
            "servers know to tell a consumer is taken, and ignored; one of these settings, misspelt, is refused."
        ),
        body=Body(content=v2_content(shapes.NEW_CONSUMER), is_required=False),
        errors=(
            e.ConsumerExistsError,
            InvalidFieldError,
            e.InvalidConsumerError,
            e.UnsupportedSchemaError,
            *COORDINATOR_ERRORS,
        ),
    ),
    _consumer_route(
        f"DELETE {_CONSUMER}",
        "deleteConsumer",
        consumers.delete,
        "Forget a REST consumer",
        _DONE,
        own_params=(tokens.ARRIVED,),
        access=on_group(Operation.READ),
        errors=(*CONSUMER_ERRORS, e.GroupChangedError),
    ),
    _consumer_route(
        f"POST {_CONSUMER}/subscription",
        "subscribeConsumer",
        consumers.subscribe,
        "Subscribe to topics",
        _DONE,
        own_params=(tokens.ARRIVED,),
        access=on_group(Operation.READ, has_more=True),
        description="In place of what it subscribed to before. It is a member of its group when this is answered.",
        body=Body(content=v2_content(shapes.SUBSCRIBE)),
        errors=(*_CHOICE_ERRORS, e.InvalidTopicNameError),
    ),
    _consumer_route(
        f"GET {_CONSUMER}/subscription",
        "getConsumerSubscription",
        consumers.get_subscription,
        "What a consumer is subscribed to",
        ok_v2(shapes.SUBSCRIPTION, "Topics, and what it has of them now"),
        access=on_group(Operation.READ, is_filtered=True),
        errors=CONSUMER_ERRORS,
    ),
    _consumer_route(
        f"DELETE {_CONSUMER}/subscription",
        "unsubscribeConsumer",
        consumers.unsubscribe,
        "Give up subscription or assignment",
        _DONE,
        own_params=(tokens.ARRIVED,),
        access=on_group(Operation.READ),
        errors=(*CONSUMER_ERRORS, e.GroupChangedError),
    ),
    _consumer_route(
        f"POST {_CONSUMER}/assignments",
        "assignConsumer",
        consumers.assign,
        "Assign partitions by hand",
        _DONE,
        own_params=(tokens.ARRIVED,),
        access=on_group(Operation.READ, has_more=True),
        description="Without the group's help: others may read them, too.",
        body=Body(content=v2_content(shapes.PARTITIONS_IN)),
        errors=(*_CHOICE_ERRORS, *PARTITION_ERRORS),
    ),
    _consumer_route(
        f"GET {_CONSUMER}/assignments",
        "getConsumerAssignments",
        consumers.get_assignments,
        "What a consumer reads",
        ok_v2(shapes.ASSIGNMENTS, "Assigned by hand, or by the group"),
        access=on_group(Operation.READ, is_filtered=True),
        errors=CONSUMER_ERRORS,
    ),
    _consumer_route(
        f"POST {_CONSUMER}/positions",
        "seekConsumer",
        consumers.seek,
        "Go on at offsets, or at times",
        _DONE,
        access=on_group(Operation.READ, has_more=True),
        body=Body(content=v2_content(shapes.POSITIONS)),
        errors=_SEEK_ERRORS,
    ),
    _consumer_route(
        f"POST {_CONSUMER}/positions/beginning",
        "seekConsumerToBeginning",
        consumers.seek_to_beginning,
        "Go on at the first records",
        _DONE,
        access=on_group(Operation.READ, has_more=True),
        body=Body(content=v2_content(shapes.PARTITIONS_IN)),
        errors=_SEEK_ERRORS,
    ),
    _consumer_route(
        f"POST {_CONSUMER}/positions/end",
        "seekConsumerToEnd",
        consumers.seek_to_end,
        "Go on behind the last records",
        _DONE,
        access=on_group(Operation.READ, has_more=True),
        body=Body(content=v2_content(shapes.PARTITIONS_IN)),
        errors=_SEEK_ERRORS,
    ),
    _consumer_route(
        f"GET {_CONSUMER}/records",
        "consumeRecords",
        consumer_records.get_records,
        "The next records",
        (
            Answer(
                description=(
                    "Records in the format that the consumer was created with; none when there were none in time. A "
                    "record that is not JSON is an error in its place."
                ),
                content=_RECORDS,
            ),
        ),
        own_params=(
            consumer_records.TIMEOUT.param,
            consumer_records.MAX_BYTES.param,
            FOLLOW.param,
            tokens.TOKEN,
        ),
        access=on_group(Operation.READ, has_more=True),
        description="NDJSON is one answer as lines unless it follows; server-sent events follow.",
        takes_records=True,
        errors=(
            *CONSUMER_ERRORS,
            *LEADER_ERRORS,
            e.NotAcceptableError,
            e.SubscriptionConflictError,
            e.OffsetOutOfRangeError,
        ),
    ),
    _consumer_route(
        f"POST {_CONSUMER}/offsets",
        "commitConsumerOffsets",
        consumer_offsets.commit,
        "Commit what was delivered, or what the body names",
        _DONE,
        own_params=(consumer_offsets.ASYNC,),
        access=on_group(Operation.READ, has_more=True),
        body=Body(content=v2_content(shapes.CONSUMER_COMMIT), is_required=False),
        errors=(
            *CONSUMER_ERRORS,
            *PARTITION_ERRORS,
            InvalidFieldError,
            e.InvalidConsumerError,
            e.StaleMemberEpochError,
            e.GroupChangedError,
        ),
    ),
    _consumer_route(
        f"GET {_CONSUMER}/offsets",
        "getConsumerOffsets",
        consumer_offsets.get_offsets,
        "What the consumer's group has committed",
        ok_v2(
            shapes.CONSUMER_OFFSETS, "What is committed; partitions without a commit are left out"
        ),
        own_params=(consumer_offsets.TOPIC, consumer_offsets.PARTITION),
        access=on_group(Operation.READ, has_more=True),
        description=(
            'In the partitions of the query; or in those of a body, `{"partitions": [{"topic", "partition"}]}`, '
            "which other servers ask for; or, with neither, in those that the consumer reads."
        ),
        errors=(
            *CONSUMER_ERRORS,
            *PARTITION_ERRORS,
            InvalidFieldError,
            e.RequestTooLargeError,
            e.UnsupportedMediaTypeError,
            BodyTimeoutError,
        ),
    ),
)
