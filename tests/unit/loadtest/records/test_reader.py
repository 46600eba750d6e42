"""A topic is read back as it is stored, whatever fails meanwhile; a partition that ends early is an error."""

import random

import aiohttp
import pytest
from aiohttp import web

from loadtest.records import reader as reader_module
from loadtest.records.pages import PageFormat, StoredRecord
from loadtest.records.reader import Reader, ReadError
from milena.model.batch.encode import encode_batch, stamp_batch
from milena.model.columns import RecordColumns
from tests.support.http.http_server import serving

PARTITIONS, BATCHES, PER_BATCH = 3, 20, 7
COUNT = BATCHES * PER_BATCH


def batch_from(partition, base):
    numbers = range(base, base + PER_BATCH)
    columns = RecordColumns(
        None,
        None,
        [b"k%d" % (n % 5) for n in numbers],
        [b"%d-%d" % (partition, n) for n in numbers],
        None,
    )
    batch = encode_batch(columns, base_timestamp_ms=0)
    stamp = stamp_batch(batch, base_offset=base, leader_epoch=0, append_time_ms=0)
    return stamp + batch[len(stamp) :]


class FlakyTopic:
    """Partitions of batches, of which a page holds one. Every other question has no good answer."""

    def __init__(self):
        self.rng = random.Random(1)
        self.end_offset = COUNT

    def app(self):
        app = web.Application()
        app.add_routes(
            [
                web.get("/topics/t/partitions", self.list),
                web.get("/topics/t/partitions/{p}/offsets", self.offsets),
                web.get("/topics/t/partitions/{p}/records", self.fetch),
            ]
        )
        return app

    async def list(self, request):
        return web.json_response([{"partition": p} for p in range(PARTITIONS)])

    async def offsets(self, request):
        return web.json_response({"beginning_offset": 0, "end_offset": self.end_offset})

    async def fetch(self, request):
        assert request.headers["Accept"] == PageFormat.BATCHES.value
        fault = self.rng.choice(["none", "none", "error", "abort"])
        if fault == "error":
            return web.json_response({"error_code": 50302, "message": "no leader"}, status=503)
        if fault == "abort":
            request.transport.abort()
        at = int(request.query["offset"])
        body = batch_from(int(request.match_info["p"]), at - at % PER_BATCH) if at < COUNT else b""
        return web.Response(body=body)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(reader_module, "RETRY_AFTER_S", 0)


async def read_all(topic):
    read = {partition: [] for partition in range(PARTITIONS)}
    async with serving(topic.app()) as url, aiohttp.ClientSession() as session:
        reader = Reader(session, [url, url], "t")
        await reader.read_all(lambda partition, page: read[partition].extend(page.records))
    return read


async def test_every_record_comes_once_and_in_order():
    for partition, records in (await read_all(FlakyTopic())).items():
        assert records == [
            StoredRecord(n, b"k%d" % (n % 5), b"%d-%d" % (partition, n)) for n in range(COUNT)
        ]


async def test_a_partition_that_ends_early_is_an_error():
    topic = FlakyTopic()
    topic.end_offset = COUNT + 1
    with pytest.raises(ReadError, match=f"should end at {COUNT + 1}"):
        await read_all(topic)


async def test_a_partition_is_read_no_further_than_its_end():
    topic = FlakyTopic()
    topic.end_offset = COUNT - 3
    assert {len(records) for records in (await read_all(topic)).values()} == {COUNT - 3}
