"""Check on the driver, before it plans a write, that the topic exists or can be created, and find all nodes.

The functions without a client block, on their own event loop.
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
    """Check that the cluster responds, and has the topic of the option or creates it automatically.

    Raises:
        OptionError: there is no such topic, and the cluster does not create it.
        ClientError: the cluster does not respond.
    """

    async def check() -> None:
        async with Client(options.urls, credentials=options.credentials) as client:
            await prepare_write(client, options)

    asyncio.run(check())


def options_for_tasks(options: WriteOptions) -> WriteOptions:
    """Return the options for the tasks of a plain write: all nodes, and the tasks' credentials.

    Raises:
        OptionError: as ``check_can_write``; or the options require tokens for tasks, and the cluster cannot give one.
        ClientError: the cluster does not respond.
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
    """Check like ``check_can_write`` with an open client; return the URLs of all nodes."""
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
