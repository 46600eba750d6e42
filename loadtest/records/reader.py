"""Read a whole topic back, page by page, as any HTTP client can."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from urllib.parse import quote

import aiohttp

from loadtest.records.pages import Page, PageFormat, parse_page

PAGE_BYTES = 2 << 20
WAIT_MS = 500
ATTEMPTS = 40
RETRY_AFTER_S = 0.25
"""The pauses between attempts, ten seconds in all: longer than a failover that may be in progress."""

OnPage = Callable[[int, Page], None]
"""A function that gets a partition and its next records."""


class ReadError(Exception):
    """A page could not be read; the message says which."""


class Reader:
    """Reads through the first of ``urls``; if that node does not respond, through the next one."""

    def __init__(self, session: aiohttp.ClientSession, urls: Sequence[str], topic: str) -> None:
        self._session = session
        self._urls = tuple(urls)
        self._path = f"/topics/{quote(topic, safe='')}/partitions"

    async def read_all(self, on_page: OnPage) -> None:
        """Read every partition from its first offset to its end; partitions in parallel, each in order.

        Raises:
            ReadError: a page could not be read.
        """
        partitions = json.loads(await self._get("", {}, "application/json"))
        numbers = [p["partition"] for p in partitions]
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in numbers:
                    tasks.create_task(self._read_partition(number, on_page))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def offsets(self, partition: int) -> tuple[int, int]:
        """Return the first offset of a partition, and the offset after its last record.

        Raises:
            ReadError: no node responded.
        """
        answer = json.loads(await self._get(f"/{partition}/offsets", {}, "application/json"))
        return answer["beginning_offset"], answer["end_offset"]

    async def pages(self, partition: int, start: int, end: int) -> AsyncIterator[Page]:
        """Yield the stored records of [start, end), after their checksums were verified.

        Raises:
            ReadError: a page could not be read, or the partition ends before ``end``.
            PageError: a response is no page of records.
        """
        at = start
        while at < end:
            body = await self._records(partition, at, PageFormat.BATCHES.value)
            page = parse_page(PageFormat.BATCHES, body, at).before(end)
            if not page.records:
                raise ReadError(f"partition {partition} ends at {at}, it should end at {end}")
            yield page
            at = page.records[-1].offset + 1

    async def _read_partition(self, partition: int, on_page: OnPage) -> None:
        start, end = await self.offsets(partition)
        async for page in self.pages(partition, start, end):
            on_page(partition, page)

    async def _records(self, partition: int, at: int, accept: str) -> bytes:
        params = {"offset": str(at), "max_bytes": str(PAGE_BYTES), "timeout": str(WAIT_MS)}
        return await self._get(f"/{partition}/records", params, accept)

    async def _get(self, path: str, params: Mapping[str, str], accept: str) -> bytes:
        """Return one page, with retries while no node can give it."""
        trouble = ""
        for attempt in range(ATTEMPTS):
            url = self._urls[attempt % len(self._urls)] + self._path + path
            try:
                async with self._session.get(
                    url, params=params, headers={"Accept": accept}
                ) as response:
                    answer = await response.read()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                trouble = f"{url}: {str(error) or type(error).__name__}"
            else:
                if response.status == 200:
                    return answer
                trouble = f"{url}: HTTP {response.status} {answer[:200].decode(errors='replace')}"
            await asyncio.sleep(RETRY_AFTER_S)
        raise ReadError(trouble)
