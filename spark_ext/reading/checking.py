"""What is asked of the cluster at ``load()``: does it answer, and has it what is to be read.

Runs a loop of its own and blocks.
"""

import asyncio

from milena.client import Client
from milena.records import TopicPartition
from spark_ext.cluster.questions import Questions
from spark_ext.errors import OffsetError
from spark_ext.options.parsing import ReadOptions
from spark_ext.options.selection import missing_of, named_topics


def check_can_read(options: ReadOptions) -> None:
    """Check that the cluster answers, and has the topics and partitions that are named.

    Where data may be lost these may be gone: a stream that is started again goes on without them.

    Raises:
        OffsetError: there is no such topic or partition.
        ClientError: the cluster does not answer.
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
