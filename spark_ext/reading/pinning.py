"""Fix the offset ranges of a batch query, from the cluster's state when Spark plans the query.

The cluster is asked once per query; the ranges are fixed after that. The request blocks, on its own event loop.
"""

import asyncio
import logging
from dataclasses import dataclass, replace

from milena.client import Client
from spark_ext.cluster.questions import Questions, all_urls
from spark_ext.cluster.task_tokens import TOKENS, read_grants
from spark_ext.options.parsing import Fetching, ReadOptions
from spark_ext.options.selection import named_topics, partitions_of, topics_of
from spark_ext.reading.planner import PlannedRange, resolve, time_queries

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pinned:
    """The range of every partition that a query reads, and how its tasks reach the nodes."""

    ranges: tuple[PlannedRange, ...]
    fetching: Fetching


def pin(options: ReadOptions) -> Pinned:
    """Return the ranges that a query reads, as of now.

    Raises:
        OptionError: the options require tokens for tasks, and the cluster cannot give one.
        OffsetError, DataLossError: the requested offsets do not exist.
        ClientError: the cluster does not respond.
    """
    return asyncio.run(_pin(options))


async def _pin(options: ReadOptions) -> Pinned:
    fetching = options.fetching
    async with Client(fetching.urls, credentials=fetching.credentials) as client:
        cluster = Questions(client, options)
        topics = await cluster.topics(named_topics(options.selection))
        names = topics_of(options.selection, topics)
        partitions = partitions_of(
            options.selection, {name: len(topics[name].partitions) for name in names}
        )
        queries = sorted(time_queries((options.start, options.end), partitions))
        # Look up times before ends. In the other order a new record could put a found offset beyond its end.
        offsets = await cluster.ask_all(cluster.offset_at, queries)
        ends = await cluster.ask_all(cluster.ends_of, partitions)
        shipped = replace(
            fetching,
            urls=await all_urls(client, fetching),
            credentials=await TOKENS.credentials(
                client, fetching.credentials, fetching.task_token, read_grants(names)
            ),
        )
    ranges, losses = resolve(
        options,
        dict(zip(partitions, ends, strict=True)),
        {name: topic.topic_id for name, topic in topics.items()},
        dict(zip(queries, offsets, strict=True)),
    )
    for loss in losses:
        logger.warning("%s; what there is is read", loss)
    return Pinned(ranges, shipped)
