"""Read a topic back, and have the checker compare it with the ledgers of a run."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import aiohttp
from tqdm import tqdm

from loadtest.cluster.access import session_for
from loadtest.judging.checker import Checker
from loadtest.judging.ledger import read_all
from loadtest.judging.plants import Planter
from loadtest.judging.verdict import Verdict
from loadtest.records.pages import PageError
from loadtest.records.reader import Reader, ReadError
from milena.cluster.credentials import ANONYMOUS, Credentials

READ_TIMEOUT_S = 20.0


async def judge(
    ledgers: Path,
    urls: Sequence[str],
    *,
    planter: Planter,
    credentials: Credentials = ANONYMOUS,
    is_quiet: bool = False,
) -> Verdict:
    """Judge the fate of all records in the ledgers of a run.

    Raises:
        LedgerError: a ledger cannot be read.
        BadCredentialsError: a file in the credentials cannot be used.
    """
    checker = Checker()
    # These loops over ledgers block the event loop. Nothing else runs in this process meanwhile.
    for event in read_all(ledgers):
        checker.note_write(event)
    limits = aiohttp.ClientTimeout(total=READ_TIMEOUT_S, sock_connect=2)
    async with session_for(credentials, limits) as session:
        readers = [Reader(session, [*urls[i:], *urls[:i]], checker.topic) for i in range(len(urls))]
        with tqdm(desc="reading back", unit=" records", disable=is_quiet, mininterval=0.5) as bar:
            async with asyncio.TaskGroup() as tasks:
                for partition in sorted(checker.starts):
                    # Read each partition through a different node: any node must return the correct records.
                    reader = readers[partition % len(readers)]
                    tasks.create_task(_read_partition(checker, reader, partition, planter, bar))
    for event in read_all(ledgers):
        checker.note_poll(event)
    return checker.verdict()


async def _read_partition(
    checker: Checker, reader: Reader, partition: int, planter: Planter, bar: "tqdm[None]"
) -> None:
    start = checker.starts[partition]
    try:
        first, end = await reader.offsets(partition)
        if first > start:
            checker.cannot_read(partition, f"offsets {start} to {first - 1} were deleted meanwhile")
            return
        async for page in reader.pages(partition, start, end):
            for record in planter.alter(partition, page.records):
                checker.read(partition, *record)
            bar.update(len(page.records))
    except PageError as error:
        checker.found_corrupt(partition, str(error))
    except ReadError as error:
        checker.cannot_read(partition, str(error))
    else:
        for record in planter.at_end(partition, end):
            checker.read(partition, *record)
        checker.end_partition(partition)
