"""Native endpoints: counts, and pages of topics and partitions, for clusters of any size.

``/metadata`` has all partitions in one response, for clients that need the leader of each.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import islice

from aiohttp import web

from http_api.access.rights import everything
from http_api.describing.pages import LIMIT, RowPage, matching, sort_param
from http_api.describing.params import ChoiceParam
from http_api.native.cluster_metadata import image_now, partition_row
from http_api.native.tally import (
    BrokerTally,
    ClusterTally,
    LastTally,
    TopicTally,
    Trouble,
    tally,
    trouble_of,
)
from http_api.ports.node import StoredBytes, TopicHere
from http_api.protocol.answers import json_answer
from http_api.serving.call import Call
from http_api.serving.lookup import find_topic
from http_api.shapes import native as shapes
from milena.model.access import ResourceType
from raft_meta.machine.image import Image, Partition, Topic
from raft_meta.machine.topics.configs import min_insync

WORST_MAX = 100
"""The most partitions that the summary lists among those in trouble (``tally.Trouble``)."""


@dataclass(frozen=True, slots=True)
class _TopicRow:
    topic: Topic
    tally: TopicTally
    here: TopicHere | None


@dataclass(frozen=True, slots=True)
class _PartitionRow:
    number: int
    state: Partition
    stored_bytes: int | None


_BY_SIZE = "stored_bytes"
_TopicKey = Callable[[_TopicRow], tuple[float, ...]]
_PartitionKey = Callable[[_PartitionRow], float]


def _here(value: Callable[[TopicHere], float]) -> _TopicKey:
    return lambda row: (-1.0,) if row.here is None else (value(row.here),)


# None stands for the order by name, for which only the rows of the page need to be created.
_TOPIC_KEYS: Mapping[str, _TopicKey | None] = {
    "name": None,
    "partitions": lambda row: (row.tally.partitions,),
    "replicas": lambda row: (row.topic.replication_factor,),
    "configs": lambda row: (len(row.topic.configs),),
    "trouble": lambda row: row.tally.worst,
    _BY_SIZE: _here(lambda here: here.stored_bytes),
    "records_in": _here(lambda here: here.records_in_per_second),
    "records_out": _here(lambda here: here.records_out_per_second),
}
_PARTITION_KEYS: Mapping[str, _PartitionKey | None] = {
    "partition": None,
    "leader": lambda row: -1 if row.state.leader is None else row.state.leader,
    "leader_epoch": lambda row: row.state.leader_epoch,
    "in_sync": lambda row: len(row.state.isr),
    _BY_SIZE: lambda row: -1 if row.stored_bytes is None else row.stored_bytes,
}
SIZES = ChoiceParam(
    name="sizes",
    description="all: every node is asked, and `stored_bytes`, by which `sort` goes then, is of all replicas",
    words={"here": False, "all": True},
    hint="here or all",
)
TOPIC_SORT = sort_param(_TOPIC_KEYS, "name")
PARTITION_SORT = sort_param(_PARTITION_KEYS, "number")

_last = LastTally()


async def get_summary(call: Call) -> web.Response:
    """Return brokers with replica counts, the numbers of topics and partitions, and the partitions in trouble."""
    image, is_current = await image_now(call.ports.metadata)
    is_seen = call.rights.seen(ResourceType.TOPIC)
    found = await _tally(image, is_seen)
    return json_answer(
        shapes.CLUSTER_SUMMARY.of(
            image,
            version=call.ports.metadata.version,
            is_current=is_current,
            brokers=[
                shapes.BROKER_SUMMARY.of(
                    image.brokers[id_],
                    url=image.brokers[id_].api_url,
                    **asdict(found.brokers.get(id_, BrokerTally())),
                )
                for id_ in sorted(image.brokers)
            ],
            topic_count=len(found.topics),
            partition_count=found.partitions,
            **{trouble.name.lower(): len(keys) for trouble, keys in found.troubled.items()},
            worst_partitions=[
                {
                    "topic": image.topics[key[0]].name,
                    **partition_row(key[1], image.partitions[key]),
                    "trouble": trouble.name.lower(),
                }
                for key, trouble in islice(found.worst(), WORST_MAX)
            ],
        )
    )


async def _tally(image: Image, is_seen: Callable[[str], bool]) -> ClusterTally:
    if is_seen is everything:
        return await _last.of_all(image)
    return await tally(image, (topic for topic in image.topics.values() if is_seen(topic.name)))


async def list_topics(call: Call) -> web.Response:
    """Return some topics, with the state of their partitions and this node's measurements of them."""
    query = call.query()
    key, page = TOPIC_SORT.read(query), RowPage.of(query, LIMIT)
    image, is_current = await image_now(call.ports.metadata)
    is_seen = call.rights.seen(ResourceType.TOPIC)
    names = matching(sorted(filter(is_seen, image.topic_ids)), str, query)
    # The counts are per topic, so a row reveals nothing about topics that the caller may not see.
    tallies, here = (await _last.of_all(image)).topics, call.ports.history.topics_here()

    def row(name: str) -> _TopicRow:
        topic_id = image.topic_ids[name]
        return _TopicRow(image.topics[topic_id], tallies[topic_id], here.get(topic_id))

    stored: StoredBytes | None = None
    if SIZES.read(query):
        ask = call.ports.history.stored_bytes
        if key is _TOPIC_KEYS[_BY_SIZE]:
            of_all = stored = await ask([image.topic_ids[name] for name in names])
            rows = page.rows(names, row, lambda one: (of_all.sizes.get(one.topic.topic_id, -1),))
        else:
            rows = page.rows(names, row, key)
            stored = await ask([one.topic.topic_id for one in rows])
    else:
        rows = page.rows(names, row, key)
    return json_answer(
        {
            "version": call.ports.metadata.version,
            "is_current": is_current,
            "total": len(names),
            **_silent_nodes(stored),
            "topics": [_topic_row(one) | _size(stored, one.topic.topic_id) for one in rows],
        }
    )


def _silent_nodes(stored: StoredBytes | None) -> dict[str, object]:
    return {} if stored is None else {"silent_nodes": stored.silent_nodes}


def _size(stored: StoredBytes | None, name: str) -> dict[str, object]:
    """Return the field for the bytes of all replicas, or no field if it was not requested; null: not reported."""
    return {} if stored is None else {"stored_bytes": stored.sizes.get(name)}


async def get_topic(call: Call) -> web.Response:
    """Return a topic with some of its partitions."""
    query, metadata, history = call.query(), call.ports.metadata, call.ports.history
    key, page = PARTITION_SORT.read(query), RowPage.of(query, LIMIT)
    _, is_current = await image_now(metadata)
    topic = await find_topic(call)
    topic_id, least = topic.topic_id, min_insync(topic)
    image, here = metadata.image, history.topics_here().get(topic_id)
    counts = (await _last.of_all(image)).topics[topic_id]
    numbers = [n for n in range(topic.partition_count) if (topic_id, n) in image.partitions]

    def row(number: int) -> _PartitionRow:
        stored_bytes = history.stored_bytes_here(topic_id, number)
        return _PartitionRow(number, image.partitions[topic_id, number], stored_bytes)

    stored: StoredBytes | None = None
    total: dict[str, object] = {}
    if SIZES.read(query):
        of_all = stored = await history.stored_bytes([topic_id], by_partition=True)
        total["stored_bytes"] = sum(of_all.sizes.values()) if of_all.sizes else None
        if key is _PARTITION_KEYS[_BY_SIZE]:
            key = lambda one: of_all.sizes.get(str(one.number), -1)  # noqa: E731
    return json_answer(
        {
            "version": metadata.version,
            "is_current": is_current,
            **_topic_row(_TopicRow(topic, counts, here)),
            "min_insync_replicas": least,
            **total,
            **_silent_nodes(stored),
            "partitions": [
                _partition(one, least) | _size(stored, str(one.number))
                for one in page.rows(numbers, row, key)
            ],
        }
    )


def _topic_row(row: _TopicRow) -> dict[str, object]:
    here = row.here
    return shapes.TOPIC_SUMMARY.of(
        row.topic,
        configs=dict(row.topic.configs),
        partition_count=row.tally.partitions,
        **{trouble.name.lower(): row.tally.troubles[trouble] for trouble in Trouble},
        stored_bytes_here=None if here is None else here.stored_bytes,
        records_in_per_second_here=None if here is None else here.records_in_per_second,
        records_out_per_second_here=None if here is None else here.records_out_per_second,
    )


def _partition(row: _PartitionRow, least: int) -> dict[str, object]:
    trouble = trouble_of(row.state, least)
    return {
        **partition_row(row.number, row.state),
        "trouble": None if trouble is None else trouble.name.lower(),
        "stored_bytes_here": row.stored_bytes,
    }
