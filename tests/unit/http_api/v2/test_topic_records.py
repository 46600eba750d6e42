"""Reading a whole topic by one request: all of it, each partition in order, and going on where the client says."""

import asyncio

import pytest

from http_api.ports.node import ApiLimits
from http_api.v2 import topic_records
from milena.model.errors import NoLeaderError
from tests.support.http.api_server import EVENTS, NDJSON, serving
from tests.unit.http_api.streaming.test_streams import events, lines

PATH = "/topics/many/records"


@pytest.fixture
def filled(api):
    """Three partitions of 4, 2 and no records."""
    api.node.append("many", 0, [b"0", b"1"])
    api.node.append("many", 1, [b"10", b"11"])
    api.node.append("many", 0, [b"2", b"3"])
    return api


def values(records):
    by_partition = {}
    for record in records:
        by_partition.setdefault(record["partition"], []).append(record["value"])
    return by_partition


@pytest.mark.parametrize("accept", [None, "*/*", NDJSON])
async def test_lines_hold_all_partitions_and_end_where_they_end(filled, accept):
    headers = {} if accept is None else {"Accept": accept}
    answer = await filled.get(PATH, headers=headers)
    assert answer.headers["Content-Type"] == NDJSON
    assert values(lines(answer.body)) == {0: [0, 1, 2, 3], 1: [10, 11]}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("?offset=0:2,1:1", {0: [2, 3], 1: [11]}),
        ("?offset=1:1", {0: [0, 1, 2, 3], 1: [11]}),
        ("?offset=latest", {}),
        ("?offset=-1", {0: [3], 1: [11]}),
        ("?offset=earliest&count=5", {0: [0, 1, 2, 3], 1: [10]}),
        ("?count=3", {0: [0, 1, 2]}),
    ],
)
async def test_where_it_begins_and_how_much_it_is(filled, query, expected):
    assert values(lines((await filled.get(PATH + query)).body)) == expected


@pytest.mark.parametrize(
    "offset", ["begin", "5", "0:1,", "0:-1", "a:1", "0", "1:2:3", "0:99999999999999999999"]
)
async def test_other_beginnings_are_refused(filled, offset):
    answer = await filled.get(f"{PATH}?offset={offset}")
    assert answer.error == (400, 400)
    assert "offset" in answer.json["message"]


@pytest.mark.parametrize("id_", ["", "earliest", "-5", "12", "0:1,"])
async def test_ids_that_are_none_are_refused(filled, id_):
    answer = await filled.get(PATH, headers={"Last-Event-ID": id_})
    assert answer.error == (400, 400)
    assert "Last-Event-ID" in answer.json["message"]


async def test_an_event_says_where_all_partitions_stand(filled):
    """Whoever comes back with an id gets what that reader had not seen, and nothing twice."""
    found = events((await filled.get(f"{PATH}?follow=false", headers={"Accept": EVENTS})).body)
    assert len(found) == 6
    seen = [(event["id"], event["data"]) for event in found]
    for at, (id_, _) in enumerate(seen):
        headers = {"Accept": EVENTS, "Last-Event-ID": id_}
        rest = events(
            (await filled.get(f"{PATH}?follow=false&offset=latest", headers=headers)).body
        )
        assert sorted(e["data"] for e in rest) == sorted(data for _, data in seen[at + 1 :])


async def test_events_go_on_with_what_comes(filled):
    url = f"{filled.base_url}{PATH}?offset=latest&count=3"
    async with filled.session.get(url, headers={"Accept": EVENTS}) as response:
        for partition, value in ((1, b"12"), (2, b"20"), (0, b"4")):
            filled.node.append("many", partition, [value])
            await asyncio.sleep(0)
        found = events(await response.read())
    assert sorted(event["data"].split('"value":')[1][:2] for event in found) == ["12", "20", "4,"]
    assert found[-1]["id"] == f"{'0' * 12}.0:5,1:3,2:1"


@pytest.mark.parametrize("accept", [EVENTS, NDJSON])
async def test_an_id_of_a_topic_that_was_made_again_is_refused(filled, accept):
    tag = "0" * 12
    headers = {"Accept": accept, "Last-Event-ID": f"{tag}.0:1,1:0"}
    query = "?follow=false&offset=0:1"
    assert (await filled.get(f"{PATH}{query}", headers=headers)).status == 200
    filled.node.make_again("many")
    for partition in (0, 1):
        filled.node.append("many", partition, [b"1"] * 9)
    assert (await filled.get(f"{PATH}{query}", headers=headers)).error == (400, 40002)
    found = await filled.get(f"{PATH}?follow=false&offset={tag}.0:1", headers={"Accept": accept})
    assert found.error == (400, 40002)
    # An offset that names no topic is of the one that has the name.
    found = await filled.get(f"{PATH}{query}", headers={"Accept": accept})
    assert found.status == 200


async def test_an_id_that_names_no_topic_is_refused(filled):
    answer = await filled.get(PATH, headers={"Accept": EVENTS, "Last-Event-ID": "0:1,1:0"})
    assert answer.error == (400, 400)
    assert "made again" in answer.json["message"]


async def test_a_partition_that_is_added_is_read_from_its_first_record(filled):
    url = f"{filled.base_url}{PATH}?offset=latest&count=2"
    async with filled.session.get(url, headers={"Accept": EVENTS}) as response:
        await response.content.readuntil(b"\n\n")
        await filled.node.add_partitions("many", 4)
        filled.node.append("many", 3, [b"30"])
        filled.node.append("many", 0, [b"4"])
        found = events(await response.read())
    assert sorted(event["data"].split('"value":')[1][:2] for event in found) == ["30", "4,"]


async def test_a_partition_that_cannot_be_read_is_the_answer(filled):
    filled.node.errors["fetch"] = NoLeaderError("many-1 has no leader")
    assert (await filled.get(PATH)).error == (503, 50302)


async def test_types_that_have_an_end_are_refused(filled):
    answer = await filled.get(PATH, headers={"Accept": "application/json"})
    assert answer.error == (406, 40601)
    assert NDJSON in answer.json["message"]


async def test_a_topic_that_is_missing_or_too_wide(filled, monkeypatch):
    assert (await filled.get("/topics/nothing/records")).error == (404, 40402)
    assert (await filled.get(f"{PATH}?offset=7:0")).error == (404, 40402)
    monkeypatch.setattr(topic_records, "PARTITIONS_MAX", 2)
    answer = await filled.get(PATH)
    assert answer.error == (400, 400)
    assert "consumer group" in answer.json["message"]


async def test_it_costs_as_many_streams_as_it_reads_partitions():
    async with serving(limits=ApiLimits(streams_max=2)) as api:
        api.node.add_topic("many", 3)
        assert (await api.get(PATH)).error == (429, 42901)
        api.node.add_topic("two", 2)
        for _ in range(3):
            assert (await api.get("/topics/two/records")).status == 200
