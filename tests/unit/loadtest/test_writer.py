"""Exactly once over a server that loses answers, refuses, and half fails, as long as it keeps Idempotency-Key."""

import json
import random
from collections import defaultdict

import aiohttp
import pytest
from aiohttp import web

from loadtest import writer as writer_module
from loadtest.reader import Reader, ReadError
from loadtest.source import JSON_TYPE, Record, Source, json_text, request_body
from loadtest.tally import Tally
from loadtest.writer import Progress, RoundRobin, WriteError, Writer, read_receipts
from tests.support.http.http_server import serving

PARTITIONS = 3


class FlakyLog:
    """Partitions in memory that keep what a key was first used for. ``faults`` are drawn from a seed."""

    def __init__(self, *, seed=1, fault_share=0.5, is_idempotent=True):
        self.rng = random.Random(seed)
        self.fault_share = fault_share
        self.is_idempotent = is_idempotent
        self.partitions = defaultdict(list)
        self.receipts = {}
        self.refusal = None

    def app(self):
        app = web.Application(client_max_size=1 << 26)
        app.add_routes(
            [
                web.post("/topics/t", self.produce),
                web.get("/topics/t/partitions", self.list),
                web.get("/topics/t/partitions/{p}/offsets", self.offsets),
                web.get("/topics/t/partitions/{p}/records", self.fetch),
            ]
        )
        return app

    async def produce(self, request):
        assert request.query["acks"] == "all"
        if self.refusal is not None:
            return web.json_response({"error_code": self.refusal}, status=self.refusal)
        fault = None
        if self.rng.random() < self.fault_share:
            fault = self.rng.choice(["before", "after", "error", "partial"])
        if fault == "before":
            return web.json_response({"error_code": 50302, "message": "no leader"}, status=503)
        receipts = self.append(request.headers["Idempotency-Key"], await request.json())
        if fault == "after":
            request.transport.abort()
        if fault == "error":
            return web.json_response({"error_code": 50401, "message": "not known"}, status=504)
        if fault == "partial":
            receipts = [*receipts[:-1], {"partition": None, "error_code": 50401, "error": "?"}]
        return web.json_response({"offsets": receipts})

    def append(self, key, body):
        if self.is_idempotent and key in self.receipts:
            return self.receipts[key]
        receipts = []
        for record in body["records"]:
            partition = hash(record.get("key")) % PARTITIONS
            log = self.partitions[partition]
            receipts.append({"partition": partition, "offset": len(log), "error_code": None})
            log.append((record.get("key"), record["value"]))
        return self.receipts.setdefault(key, receipts)

    async def list(self, request):
        return web.json_response([{"partition": p} for p in range(PARTITIONS)])

    async def offsets(self, request):
        end = len(self.partitions[int(request.match_info["p"])])
        return web.json_response({"beginning_offset": 0, "end_offset": end})

    async def fetch(self, request):
        log, at = self.partitions[int(request.match_info["p"])], int(request.query["offset"])
        page = [
            {"offset": at + i, "key": k, "value": v} for i, (k, v) in enumerate(log[at : at + 50])
        ]
        return web.json_response(page)


def source(count):
    def records():
        for i in range(count):
            yield Record(None if i % 9 == 0 else json_text(f"k{i % 7}"), json_text({"n": i}))

    return Source(name="t", count=count, media_type=JSON_TYPE, open=records)


@pytest.fixture(autouse=True)
def no_backoff(monkeypatch):
    monkeypatch.setattr(writer_module, "BACKOFF_S_MIN", 0)
    monkeypatch.setattr(writer_module, "BACKOFF_S_MAX", 0)


async def write_and_read(log, count=500):
    tally = Tally()
    answered = []
    async with serving(log.app()) as url, aiohttp.ClientSession() as session:
        progress = Progress(lambda: 0.0, answered.append)
        writer = Writer(
            session,
            [url, url],
            "t",
            run_id="r",
            progress=progress,
            workers=3,
            records_per_request=20,
        )
        await writer.write(source(count), lambda r: tally.wrote(r.key, r.value))
        await Reader(session, [url], "t").read_all(JSON_TYPE, tally.read)
    assert progress.records == sum(answered)
    return tally.verdict(), progress


async def test_every_record_is_written_once_and_in_order():
    verdict, progress = await write_and_read(FlakyLog())
    assert verdict.is_good, list(verdict.problems())
    assert progress.records == 500
    assert progress.retries > 0


async def test_a_server_that_forgets_the_key_is_caught():
    verdict, _ = await write_and_read(FlakyLog(is_idempotent=False))
    assert verdict.doubled > 0


@pytest.mark.parametrize("status", [400, 409, 413, 422])
async def test_a_request_that_is_wrong_is_not_repeated(status):
    log = FlakyLog()
    log.refusal = status
    with pytest.raises(WriteError, match=f"HTTP {status}"):
        await write_and_read(log)


async def test_giving_up_says_why(monkeypatch):
    monkeypatch.setattr(writer_module, "GIVE_UP_AFTER_S", -1)
    log = FlakyLog()
    log.refusal = 503
    with pytest.raises(WriteError, match=r"not written in -1 s: HTTP 503"):
        await write_and_read(log)


async def test_a_partition_that_ends_early_is_an_error():
    log = FlakyLog(fault_share=0)

    async def beyond(request):
        return web.json_response({"beginning_offset": 0, "end_offset": 1000})

    log.offsets = beyond
    with pytest.raises(ReadError, match="should end at 1000"):
        await write_and_read(log, count=30)


def test_receipts_with_an_error_ask_for_a_repetition():
    answer = json.dumps({"offsets": [{"partition": 1, "offset": 5, "error_code": None},
                                     {"error_code": 50303, "error": "too few"}]})  # fmt: skip
    assert read_receipts(200, answer.encode(), 2)[1] == "50303 too few"


def test_receipts_with_a_refusal_end_the_run():
    answer = json.dumps({"offsets": [{"error_code": 42205, "error": "bad"}]})
    with pytest.raises(WriteError, match="42205 bad"):
        read_receipts(200, answer.encode(), 1)


def test_a_body_is_the_json_that_its_records_are():
    body = json.loads(request_body([Record('"k"', "1"), Record(None, '{"a":null}')]))
    assert body == {"records": [{"key": "k", "value": 1}, {"value": {"a": None}}]}


def test_the_longest_gap_is_that_of_one_partition():
    now = [0.0]
    progress = Progress(lambda: now[0], lambda _: None)
    progress.begin()
    for at, partitions in [(1.0, {0, 1}), (2.0, {0}), (4.5, {1}), (5.0, {0})]:
        now[0] = at
        progress.acknowledged(partitions, 1, 10)
    assert (progress.longest_gap_s, progress.longest_gap_partition) == (3.5, 1)
    assert (progress.seconds, progress.records, progress.value_bytes) == (5.0, 4, 40)


def test_a_key_has_one_worker_and_keyless_records_take_turns():
    spread = RoundRobin(4, run=2)
    assert len({spread.worker_of('"a"') for _ in range(5)}) == 1
    assert [spread.worker_of(None) for _ in range(9)] == [0, 0, 1, 1, 2, 2, 3, 3, 0]
