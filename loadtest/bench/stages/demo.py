"""Measure the steps of ``make demo`` at full speed: write flights, record what was acknowledged, read back and check.

Unlike the demo, this stage kills no node. Two baselines run in the same rounds. For the writer, it is a minimal client
that sends batches of the same flights, which were encoded before. For the reader, it is the Python client's reader,
which reads the same records and does not inspect them.
"""

import time
from contextlib import AsyncExitStack
from copy import deepcopy
from time import perf_counter

import aiohttp

from loadtest.bench.clients.http_load import Ask, HttpLoadError
from loadtest.bench.measuring.rounds import Contender
from loadtest.bench.measuring.samples import Rounds
from loadtest.bench.plan import BenchPlan
from loadtest.bench.rows import clients as clients_rows
from loadtest.bench.servers.subject import Subject, encoded_ask
from loadtest.bench.stages.clients import bare_client
from loadtest.bench.stages.commands import reader, repeated
from loadtest.bench.stages.produce import start_milena
from loadtest.demo import BATCH_BYTES, PARTITIONS
from loadtest.judging.tally import Tally
from loadtest.records.pages import Page
from loadtest.records.reader import Reader, ReadError
from loadtest.records.source import Record, Source, SourceError, flights
from loadtest.records.writer import Progress, write_all
from milena.client import Client
from milena.model.batch.encode import encode_batch
from milena.model.columns import RecordColumns

WRITTEN, STORED = "written", "stored"


async def demo(plan: BenchPlan, stack: AsyncExitStack, rounds: Rounds) -> list[Contender]:
    """Compare ways to write all flights into six durable partitions, and to read them back."""
    try:
        source = flights()
    except SourceError as error:
        names = (clients_rows.DEMO_WRITE, clients_rows.DEMO_READ)
        rounds.failures.update(dict.fromkeys(names, str(error)))
        return []
    subject = await start_milena(plan, stack)
    for topic, is_bounded in ((WRITTEN, True), (STORED, False)):
        await subject.create_topic(
            topic, is_durable=True, is_bounded=is_bounded, partitions=PARTITIONS
        )
    urls = await subject.leader_urls(WRITTEN)
    tally = await _write(urls, STORED, source)
    return [
        bare_client(clients_rows.READY_FLIGHTS, _finished(urls, source), 1, subject.pids),
        _writer(subject, urls, source),
        reader(clients_rows.FLIGHTS_READER, urls[0], STORED, PARTITIONS, subject.pids),
        _checker(subject, urls, source, tally),
    ]


def _finished(urls: list[str], source: Source) -> list[tuple[str, Ask]]:
    """Return requests for each partition's leader with encoded batches of flights, as large as the demo's."""
    records: list[Record] = []
    size = 0
    for record in source.open():
        records.append(record)
        size += len(record.value)
        if size >= BATCH_BYTES:
            break
    columns = RecordColumns(
        offset_deltas=None,
        timestamp_deltas=None,
        keys=[record.key for record in records],
        values=[record.value for record in records],
        headers=None,
    )
    batch = encode_batch(columns, base_timestamp_ms=int(time.time() * 1000))
    return [
        (
            url,
            encoded_ask(url, WRITTEN, batch, records=len(records), acks="all", partition=partition),
        )
        for partition, url in enumerate(urls)
    ]


async def _write(urls: list[str], topic: str, source: Source) -> Tally:
    """Write all records like the demo; return the tally of what was written."""
    tally = Tally()
    progress = Progress(perf_counter, lambda _: None)
    async with Client(urls) as client, client.producer(batch_bytes=BATCH_BYTES) as producer:
        await write_all(producer, topic, source, progress, lambda record: tally.wrote(*record))
    return tally


def _writer(subject: Subject, urls: list[str], source: Source) -> Contender:
    async def once() -> float:
        began_s = perf_counter()
        await _write(urls, WRITTEN, source)
        return perf_counter() - began_s

    return repeated(clients_rows.DEMO_WRITE, once, source.count, subject.pids)


def _checker(subject: Subject, urls: list[str], source: Source, written: Tally) -> Contender:
    """Return a contender that reads back and checks; ``written`` is the tally before anything was read."""

    async def once() -> float:
        tally = deepcopy(written)

        def on_page(partition: int, page: Page) -> None:
            for record in page.records:
                tally.read(partition, record.offset, record.key, record.value)

        began_s = perf_counter()
        async with aiohttp.ClientSession() as session:
            try:
                await Reader(session, urls, STORED).read_all(on_page)
            except ReadError as error:
                raise HttpLoadError(str(error)) from error
        took_s = perf_counter() - began_s
        problems = ", ".join(tally.verdict().problems())
        if problems:
            raise HttpLoadError(problems)
        return took_s

    return repeated(clients_rows.DEMO_READ, once, source.count, subject.pids)
