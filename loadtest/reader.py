"""Reads a whole topic back through one node, page by page, as any client can with curl."""

import asyncio
import json
from collections.abc import Callable, Mapping
from urllib.parse import quote

import aiohttp

from loadtest.source import json_text

PAGE_BYTES = 2 << 20
WAIT_MS = 500
ATTEMPTS = 40
RETRY_AFTER_S = 0.25
"""Ten seconds in all: longer than any failover that may still be under way."""

OnRecord = Callable[[int, int, str | None, str], None]
"""partition, offset, key and value as JSON texts"""


class ReadError(Exception):
    """A page could not be read; the message says which."""


class Reader:
    """Reads through the node at ``url``."""

    def __init__(self, session: aiohttp.ClientSession, url: str, topic: str) -> None:
        self._session = session
        self._base = f"{url}/topics/{quote(topic, safe='')}/partitions"

    async def read_all(self, accept: str, on_record: OnRecord) -> None:
        """Read every partition from its first offset to its end; partitions at once, each in order.

        Raises:
            ReadError: a page could not be read.
        """
        partitions = json.loads(await self._get(self._base, {}, "application/json"))
        numbers = [p["partition"] for p in partitions]
        await asyncio.gather(*(self._read_partition(p, accept, on_record) for p in numbers))

    async def _read_partition(self, partition: int, accept: str, on_record: OnRecord) -> None:
        offsets = json.loads(
            await self._get(f"{self._base}/{partition}/offsets", {}, "application/json")
        )
        at, end = offsets["beginning_offset"], offsets["end_offset"]
        while at < end:
            params = {"offset": str(at), "max_bytes": str(PAGE_BYTES), "timeout": str(WAIT_MS)}
            page = await self._get(f"{self._base}/{partition}/records", params, accept)
            records = json.loads(page)
            for record in records:
                key = None if record["key"] is None else json_text(record["key"])
                on_record(partition, record["offset"], key, json_text(record["value"]))
            if not records:
                raise ReadError(f"partition {partition} ends at {at}, it should end at {end}")
            at = records[-1]["offset"] + 1

    async def _get(self, url: str, params: Mapping[str, str], accept: str) -> bytes:
        """One page, asked for again while the node cannot give it."""
        trouble = ""
        for _ in range(ATTEMPTS):
            try:
                async with self._session.get(
                    url, params=params, headers={"Accept": accept}
                ) as response:
                    answer = await response.read()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                trouble = str(error) or type(error).__name__
            else:
                if response.status == 200:
                    return answer
                trouble = f"HTTP {response.status} {answer[:200].decode(errors='replace')}"
            await asyncio.sleep(RETRY_AFTER_S)
        raise ReadError(f"{url}: {trouble}")
