"""Consumer groups and REST consumers: bodies of requests, and responses."""

from http_api.shapes.blocks import (
    TOPIC_ID,
    TOTAL,
    Optional,
    Part,
    Schema,
    Shape,
    answer,
    boolean,
    choice,
    closed_fields,
    count,
    integer,
    listing,
    mapping,
    maybe,
    nullable,
    optionals,
    request,
    text,
)

_TOPIC: Schema = text(minLength=1)

# -- REST consumers, v2 ------------------------------------------------------------------------------------------------

_WORD_OR_NUMBER: Schema = {"type": ["integer", "string", "null"]}
_WORD_OR_BOOLEAN: Schema = {"type": ["boolean", "string", "null"]}
NEW_CONSUMER = answer(
    "ConsumerIn",
    {
        "name": "c1",
        "format": "json",
        "auto.offset.reset": "earliest",
        "auto.commit.enable": "false",
    },
    **optionals(
        {
            "name": nullable(text("absent: the consumer is given one", minLength=1, maxLength=255)),
            "format": {
                "description": "`binary` (default), `json` or `text`: how its records are written",
                "type": ["string", "null"],
            },
            "auto.offset.reset": {
                "description": "where it begins where nothing is committed: `latest` (default, and committed at once), "
                "`earliest` or `none`",
                "type": ["string", "null"],
            },
            "auto.commit.enable": {
                **_WORD_OR_BOOLEAN,
                "description": "commit what was delivered by itself; default true",
            },
            "enable.auto.commit": {**_WORD_OR_BOOLEAN, "description": "the same"},
            "commit.offsets": {
                "description": "what the `offset` of a commit names: `last`, the last record that was read (as in "
                "Confluent's proxy), or `next`, the next one to read (as in Strimzi's bridge); default: the node's "
                "`rest_commit_offsets`",
                "type": ["string", "null"],
            },
            "isolation.level": nullable(text("`read_committed`, and there is no other")),
            "fetch.min.bytes": {
                **_WORD_OR_NUMBER,
                "description": "a call waits for so many bytes; default 1; -1: until its time is up",
            },
            "consumer.request.timeout.ms": {
                **_WORD_OR_NUMBER,
                "description": "how long a call waits when there is nothing; default 1000",
            },
        }
    ),
)
CONSUMER = answer(
    "Consumer",
    instance_id=text("its name"),
    base_uri=text("what its paths begin with", format="uri"),
)

SUBSCRIBE = request(
    "SubscriptionIn",
    {"topics": ["orders"]},
    topics=maybe(listing(_TOPIC, "they need not exist yet", maxItems=1000)),
    topic_pattern=maybe(text("a regular expression that whole names of topics match")),
)
SUBSCRIPTION = answer(
    "Subscription",
    topics=listing(text()),
    partitions=listing(mapping(listing(count())), "what is assigned to it now, an object a topic"),
    topic_pattern=Optional(text("when it subscribed to one")),
)

PARTITION_IN = request("PartitionIn", topic=_TOPIC, partition=count())
PARTITIONS_IN = request(
    "PartitionsIn",
    {"partitions": [{"topic": "orders", "partition": 0}]},
    partitions=listing(PARTITION_IN, maxItems=10_000),
)
ASSIGNMENTS = answer(
    "Assignments", partitions=listing(answer("AssignedPartition", topic=text(), partition=count()))
)

_METADATA = maybe(text("kept with a commit; at most 4096 bytes"))
POSITION_IN = request(
    "PositionIn",
    topic=_TOPIC,
    partition=count(),
    offset=count("of the next record to read"),
    metadata=_METADATA,
)
TIME_IN = request(
    "TimePositionIn",
    topic=_TOPIC,
    partition=count(),
    timestamp={
        "description": "the first record at or after it: ms since 1970, or ISO-8601",
        "type": ["integer", "string"],
    },
    metadata=_METADATA,
)
POSITIONS = request(
    "PositionsIn",
    {"offsets": [{"topic": "orders", "partition": 0, "offset": 17}]},
    offsets=maybe(listing(POSITION_IN, maxItems=10_000)),
    timestamps=maybe(listing(TIME_IN, maxItems=10_000)),
)

CONSUMER_COMMIT_ITEM = Shape(
    "ConsumerCommitItem",
    {
        **closed_fields(
            topic=_TOPIC,
            partition=count(),
            offset=Optional(
                count(
                    "under `offsets`: of the last record read; under `partitions`: of the next one"
                )
            ),
            next_offset=Optional(count("of the next record to read, under either name")),
            metadata=_METADATA,
        ),
        "anyOf": [{"required": ["offset"]}, {"required": ["next_offset"]}],
    },
)
CONSUMER_COMMIT = request(
    "ConsumerCommitIn",
    {"offsets": [{"topic": "orders", "partition": 0, "offset": 16}]},
    offsets=maybe(listing(CONSUMER_COMMIT_ITEM, "`offset` N commits N+1", maxItems=10_000)),
    partitions=maybe(listing(CONSUMER_COMMIT_ITEM, "`offset` N commits N", maxItems=10_000)),
)
CONSUMER_OFFSETS = answer(
    "ConsumerOffsets",
    offsets=listing(
        answer(
            "ConsumerOffset",
            topic=text(),
            partition=count(),
            offset=count(
                "of the next record that the group will read; -1: it has committed none",
                least=-1,
            ),
            metadata=text(),
        ),
        "of the partitions that were asked for, in their order",
    ),
)

# -- groups, native ----------------------------------------------------------------------------------------------------

TOPIC_PARTITIONS_IN = request("TopicPartitionsIn", topic=_TOPIC, partitions=listing(count()))
HEARTBEAT = request(
    "HeartbeatIn",
    {"member_epoch": 0, "topics": ["orders"], "owned": []},
    member_epoch=integer("0 joins, -1 leaves, else the one last heard", minimum=-1),
    member_id=maybe(text("absent: a member that joins is given one", minLength=1, maxLength=255)),
    instance_id=maybe(
        text("names the member across restarts of its process", minLength=1, maxLength=255)
    ),
    client_id=maybe(text("for people", maxLength=255)),
    topics=maybe(listing(_TOPIC, "absent: as before", maxItems=1000)),
    pattern=maybe(text("a regular expression that whole names of topics match", maxLength=1024)),
    assignor=maybe(choice("sticky", "range", "roundrobin", description="default sticky")),
    session_timeout_ms=maybe(
        integer("without a heartbeat for so long it is out", minimum=1000, maximum=300_000)
    ),
    rebalance_timeout_ms=maybe(
        count("how long it may take to give partitions back; default 60000", least=1)
    ),
    owned=maybe(
        listing(
            TOPIC_PARTITIONS_IN,
            "what it works on: says what it has given back; absent: as before",
        )
    ),
)
_TOPIC_PARTITIONS = listing(answer("TopicPartitions", topic=text(), partitions=listing(count())))
HEARTBEAT_ANSWER = answer(
    "HeartbeatAnswer",
    member_id=text(),
    member_epoch=integer("the generation that it has reached; -1: it has left"),
    generation=count("grows with each rebalance"),
    heartbeat_interval_ms=count("when to come again"),
    assignment=_TOPIC_PARTITIONS,
    pending=_TOPIC_PARTITIONS,
)

COMMIT_ITEM = request(
    "CommitItem",
    topic=_TOPIC,
    partition=count(),
    offset=count("of the next record to read"),
    leader_epoch=maybe(integer("of the record before it", minimum=-1)),
    metadata=_METADATA,
    topic_id=maybe(TOPIC_ID),
)
COMMIT = request(
    "CommitIn",
    {"offsets": [{"topic": "orders", "partition": 0, "offset": 17}]},
    offsets=listing(COMMIT_ITEM, "all of them, or none", maxItems=10_000),
    member_id=maybe(text("absent: for a group without members")),
    member_epoch=maybe(integer("the member's", minimum=-1)),
)

GROUP_OFFSET = answer(
    "GroupOffset",
    offset=count("of the next record to read"),
    leader_epoch=integer("of the record before it; -1: not told"),
    metadata=text(),
    commit_timestamp=count("ms since 1970"),
)
_OFFSETS = mapping(mapping(GROUP_OFFSET), "topic → partition → what is committed")
_HEAD: dict[str, Part] = {
    "group_id": text(),
    "kind": choice("server", "classic", description="classic: by Kafka's classic protocol"),
    "state": choice("EMPTY", "RECONCILING", "STABLE"),
    "generation": count("grows with each rebalance"),
    "assignor": text("how partitions are shared out; empty before the first time"),
    "coordinator": nullable(integer("the broker that decides for the group; null: none now")),
    "member_count": count(),
}
_MEMBER: dict[str, Part] = {
    "member_id": text(),
    "instance_id": nullable(text()),
    "client_id": text(),
    "host": text(),
    "is_rest": boolean("a REST consumer, whose name is the member's id"),
    "topics": listing(text()),
    "pattern": nullable(text()),
    "member_epoch": integer("the generation that it has reached"),
    "assignment": _TOPIC_PARTITIONS,
    "revoking": {**_TOPIC_PARTITIONS, "description": "what it has yet to give back"},
    "pending": {**_TOPIC_PARTITIONS, "description": "what others have yet to give back"},
}
GROUP_MEMBER = answer("GroupMember", **_MEMBER)
GROUP = answer("Group", **_HEAD, members=listing(GROUP_MEMBER), offsets=_OFFSETS)
GROUP_SUMMARY = answer(
    "GroupSummary",
    **_HEAD,
    lag=maybe(count("what is left to read; null: not known; told where the list is sorted by it")),
)
GROUPS = answer(
    "Groups",
    total=TOTAL,
    groups=listing(GROUP_SUMMARY, "by id, unless another order is asked for"),
)
MEMBER_SUMMARY = answer(
    "GroupMemberSummary",
    **_MEMBER,
    assignment_count=count("partitions"),
    revoking_count=count("partitions"),
    pending_count=count("partitions"),
)
MEMBER_PAGE = answer("GroupMembers", **_HEAD, total=TOTAL, members=listing(MEMBER_SUMMARY))
GROUP_LAG = answer(
    "GroupLag",
    topic=text(),
    partition=count(),
    offset=count("of the next record to read"),
    end_offset=nullable(count("null: its leader does not answer")),
    lag=nullable(count("what is left to read; null: not known, or behind the end")),
    member_id=nullable(text("the member that reads it; null: no member now")),
    commit_timestamp=count("ms since 1970"),
    metadata=text(),
)
LAG_PAGE = answer("GroupLags", **_HEAD, total=TOTAL, lags=listing(GROUP_LAG))
GROUP_OFFSETS = answer("GroupOffsets", group_id=text(), offsets=_OFFSETS)

RESET_PREVIEW = answer(
    "OffsetsResetPreview",
    group_id=text(),
    topic=text(),
    total=count("partitions of the topic"),
    partitions=listing(
        answer(
            "PartitionResetPreview",
            partition=count(),
            now=nullable(count("what is committed; null: nothing")),
            then=count("what a reset would commit"),
        )
    ),
)
RESET = request(
    "OffsetsResetIn",
    {"topic": "orders", "to": "earliest"},
    topic=_TOPIC,
    to={
        "description": (
            "`earliest`, `latest`, an offset (taken into the readable range), or an ISO-8601 time: the first "
            "record at or after it"
        ),
        "anyOf": [choice("earliest", "latest"), count(), text()],
    },
    partitions=maybe(listing(count(), "absent: all of the topic")),
)
