"""What the driver asks the cluster before it plans a write: is the topic there, or made by itself, and which nodes are.

Runs a loop of its own and blocks.
"""

import asyncio
from dataclasses import replace

from milena.client import Client
from milena.errors import TargetNotFoundError
from spark_ext.cluster.questions import all_urls
from spark_ext.cluster.task_tokens import TOKENS, write_grants
from spark_ext.errors import OptionError
from spark_ext.options.parsing import WriteOptions


def check_can_write(options: WriteOptions) -> None:
    """Check that the cluster answers, and has the topic of the option or makes it by itself.

    Raises:
        OptionError: there is no such topic.
        ClientError: the cluster does not answer.
    """

    async def check() -> None:
        async with Client(options.urls, credentials=options.credentials) as client:
            await prepare_write(client, options)

    asyncio.run(check())


def options_for_tasks(options: WriteOptions) -> WriteOptions:
    """What the tasks of a plain write have in place of the driver's options; raises as ``check_can_write``.

    Raises:
        OptionError: they are always to have a token, too, and there can be none.
    """

    async def find() -> WriteOptions:
        async with Client(options.urls, credentials=options.credentials) as client:
            urls = await prepare_write(client, options)
            credentials = await TOKENS.credentials(
                client, options.credentials, options.task_token, write_grants(options.topic)
            )
        return replace(options, urls=urls, credentials=credentials)

    return asyncio.run(find())


async def prepare_write(client: Client, options: WriteOptions) -> tuple[str, ...]:
    """As ``check_can_write``, with a client that is there; the URLs of all nodes."""
    urls = await all_urls(client, options)
    if options.topic is not None and not await _can_write(client, options.topic):
        raise OptionError(f"topic: no such topic: {options.topic}")
    return urls


async def _can_write(client: Client, topic: str) -> bool:
    try:
        await client.metadata.topic(topic)
    except TargetNotFoundError:
        return await client.transport.can_make_topic(topic)
    return True
