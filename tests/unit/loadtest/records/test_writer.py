"""A source is written whole and in order, and what is refused ends the run."""

from contextlib import asynccontextmanager
from random import Random

import pytest

from loadtest.records.source import JSON_TYPE, Record, Source, json_text
from loadtest.records.writer import RECORDS_PER_CALL, Progress, write_all
from milena.errors import AnswerError
from milena.producing.options import ProducerOptions
from milena.producing.producer import Producer
from tests.support.fakes.scripted_cluster import ScriptedClock, ScriptedCluster, not_now, unknown

COUNT = 2 * RECORDS_PER_CALL + 500


def source(count=COUNT):
    def records():
        for i in range(count):
            yield Record(None if i % 9 == 0 else json_text(f"k{i % 7}"), json_text({"n": i}))

    return Source(name="t", count=count, media_type=JSON_TYPE, open=records)


@asynccontextmanager
async def producing(cluster):
    options = ProducerOptions(linger_ms=0)
    async with Producer(
        options, transport=cluster, metadata=cluster, clock=ScriptedClock(), chance=Random(1)
    ) as producer:
        yield producer


async def test_every_record_is_written_once_in_the_order_of_its_key():
    cluster = ScriptedCluster(partitions=3)
    cluster.logs[0].script = [not_now(), unknown()]
    seen, answered = [], []
    progress = Progress(lambda: 0.0, answered.append)
    async with producing(cluster) as producer:
        await write_all(producer, "t", source(), progress, seen.append)
    wanted = list(source().open())
    assert seen == wanted
    assert sum(answered) == progress.records == COUNT
    assert progress.value_bytes == sum(len(record.value) for record in wanted)
    values = [value for log in cluster.logs.values() for value in log.values]
    assert sorted(values) == sorted(record.value for record in wanted)
    for key in {record.key for record in wanted} - {None}:
        order = [record.value for record in wanted if record.key == key]
        assert [v for log in cluster.logs.values() for v in log.values if v in set(order)] == order


async def test_what_is_refused_ends_the_run():
    cluster = ScriptedCluster()
    cluster.logs[0].script = [AnswerError("a value is wrong", status=422, error_code=42205)]
    progress = Progress(lambda: 0.0, lambda _: None)
    async with producing(cluster) as producer:
        with pytest.raises(AnswerError, match="a value is wrong"):
            await write_all(producer, "t", source(10), progress, lambda _: None)
    assert progress.records == 0


def test_the_longest_gap_is_the_longest_time_without_an_acknowledgement():
    now = [0.0]
    progress = Progress(lambda: now[0], lambda _: None)
    progress.begin()
    for at in (1.0, 2.0, 4.5, 5.0):
        now[0] = at
        progress.acknowledged(1, 10)
    assert progress.longest_gap_s == 2.5
    assert (progress.seconds, progress.records, progress.value_bytes) == (5.0, 4, 40)
