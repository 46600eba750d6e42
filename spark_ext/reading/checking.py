"""Check at ``load()`` that the cluster responds, and has the topics and partitions to read.

The check blocks, on its own event loop.
"""

import asyncio

from milena.client import Client
from milena.records import TopicPartition
from spark_ext.cluster.questions import Questions
from spark_ext.errors import OffsetError
from spark_ext.options.parsing import ReadOptions
from spark_ext.options.selection import missing_of, named_topics


def check_can_read(options: ReadOptions) -> None:
    """Check that the cluster responds, and has the topics and partitions that the options name.

    Missing ones are accepted if the query does not fail on data loss: a restarted stream continues without them.

    Raises:
        OffsetError: there is no such topic or partition.
        ClientError: the cluster does not respond.
    """
    missing = missing_of(options.selection, asyncio.run(_partitions(options)))
    if missing and options.fetching.fail_on_data_loss:
        raise OffsetError(missing[0])


async def _partitions(options: ReadOptions) -> list[TopicPartition]:
    fetching = options.fetching
    async with Client(fetching.urls, credentials=fetching.credentials) as client:
        topics = await Questions(client, options).topics(named_topics(options.selection))
    return [
        TopicPartition(name, number)
        for name, topic in topics.items()
        for number in range(len(topic.partitions))
    ]
