"""``milena status --watch``: what is shown of two looks at a cluster, and how it goes on."""

import asyncio

import pytest

from milena import cli
from milena.cluster.admin import AdminClient
from milena.cluster.node_metrics import parse_metrics
from milena.commands.health.status_watch import watch
from milena.errors import UnexpectedAnswerError
from milena.records import TopicPartition
from tests.support.fakes.api import FakeApi
from tests.support.http.http_server import serving
from tests.support.time.fake_clock import FakeClock


@pytest.fixture
async def api():
    fake = FakeApi()
    async with serving(fake.app()) as fake.url:
        fake.brokers = [{**fake.broker(1), "url": fake.url}]
        fake.add_topic("t", replicas=(1,))
        yield fake


def counted(records, *, end=50):
    labels = '{partition="0",topic="t"}'
    return (
        f"# HELP milena_ready 1: rejoined.\nmilena_ready 1.0\n"
        f"milena_partition_leader{labels} 1.0\n"
        f"milena_partition_high_watermark{labels} {end}.0\n"
        f"milena_partition_records_in_total{labels} {records}.0\n"
        f"milena_partition_bytes_in_total{labels} {records * 100}.0\n"
        f"milena_partition_bytes_out_total{labels} {records * 10}.0\n"
        'milena_http_requests_total{method="GET",path="/topics/{topic}"} 3\n'
    )


def test_metrics_are_read_by_name_and_by_partition():
    found = parse_metrics(counted(7))
    assert found.values == {"ready": 1.0}
    assert found.partitions[TopicPartition("t", 0)]["records_in_total"] == 7
    assert found.total("bytes_in_total") == 700


def test_a_page_that_is_no_metrics_is_refused():
    with pytest.raises(UnexpectedAnswerError, match="is this a Milena node"):
        parse_metrics("<html>")


async def looks(api, count, between):
    """What the first looks show; ``between`` changes the cluster before each further one."""
    clock, shown = FakeClock(), []
    async with AdminClient(api.url) as client:
        task = asyncio.create_task(watch(client, shown.append, clock, interval_ms=2000))
        try:
            for number in range(1, count + 1):
                while not clock.sleepers():
                    await asyncio.sleep(0)
                if number < count:
                    between(number)
                    await clock.advance(2000)
        finally:
            task.cancel()
            await asyncio.wait({task})
    return shown


async def test_the_first_look_has_no_rates_and_the_second_has_those_between(api):
    api.metrics = counted(1000)

    def between(_):
        api.metrics = counted(1500)

    first, second = await looks(api, 2, between)
    assert first.splitlines()[0] == "cluster c1: 1 topics, 1 partitions"
    assert ["1", "up", "1", "-", "-", "-", "controller"] in map(str.split, first.splitlines())
    assert ["1", "up", "1", "250", "25000", "2500", "controller"] in map(
        str.split, second.splitlines()
    )
    assert ["t", "1", "250", "25000", "2500", "0", "0"] in map(str.split, second.splitlines())
    assert second.splitlines()[-1] == "healthy"


async def test_counts_of_a_node_that_started_again_begin_at_zero(api):
    api.metrics = counted(1000)

    def between(_):
        api.metrics = counted(10)

    _, second = await looks(api, 2, between)
    assert ["t", "1", "5", "500", "50", "0", "0"] in map(str.split, second.splitlines())


async def test_groups_are_shown_with_their_lag(api):
    api.metrics = counted(0)
    api.groups.describe("late", offsets={"t": {0: 40}})
    api.groups.describe("later", offsets={"t": {0: 10}})
    api.groups.describe("elsewhere", offsets={"gone": {0: 10}})
    (look,) = await looks(api, 1, None)
    rows = [line.split() for line in look.splitlines()]
    begin = rows.index(["GROUP", "STATE", "MEMBERS", "LAG"])
    assert [(row[0], row[3]) for row in rows[begin + 1 : begin + 4]] == [
        ("elsewhere", "-"),
        ("later", "32"),
        ("late", "2"),
    ]


async def test_a_node_that_counts_nothing_is_shown_without_rates(api):
    api.metrics = None
    first, second = await looks(api, 2, lambda _: None)
    assert ["1", "up", "1", "-", "-", "-", "controller"] in map(str.split, first.splitlines())
    assert first == second


async def test_a_cluster_that_does_not_answer_is_asked_again(api):
    api.metrics = counted(0)
    api.answer = (503, {"error_code": 50305, "message": "no quorum"})

    def between(_):
        api.answer = None

    first, second = await looks(api, 2, between)
    assert first == "no view of the cluster: no quorum"
    assert second.endswith("healthy")


def test_watching_is_for_people(capsys):
    assert cli.run(["status", "--watch", "--json"]) == 64
    assert "leave out one" in capsys.readouterr().err
