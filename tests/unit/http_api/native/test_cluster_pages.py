"""What a page shows of a cluster: counts of all, and a few topics or partitions at a time."""

import asyncio

import pytest

from http_api.describing.pages import ROWS_MAX
from http_api.native import tally as tallies
from http_api.native.cluster_pages import WORST_MAX
from http_api.native.tally import LastTally, Trouble, tally
from http_api.ports.node import TopicHere
from tests.support.fakes.ports import CLUSTER_ID, FakeNode
from tests.support.http.api_server import serving
from tests.support.http.credentials import Allowed, ClosedNode

LARGE_BYTES = 64 << 10
"""A page of 50 rows takes less, whatever the cluster's size."""


def here(stored_bytes: int, records_in: float = 0, records_out: float = 0) -> TopicHere:
    return TopicHere(
        stored_bytes=stored_bytes,
        records_in_per_second=records_in,
        records_out_per_second=records_out,
    )


async def names(api, query=""):
    return [topic["name"] for topic in (await api.get(f"/metadata/topics{query}")).json["topics"]]


async def numbers(api, query=""):
    body = (await api.get(f"/metadata/topics/many{query}")).json
    return [partition["partition"] for partition in body["partitions"]]


async def test_a_summary_counts_what_the_whole_map_has(api):
    api.node.set_partition("t", 0, leader=None)
    api.node.set_partition("many", 1, isr=(1,))
    api.node.set_partition("many", 2, isr=(1, 2, 3), leader=2)
    whole, body = (await api.get("/metadata")).json, (await api.get("/metadata/summary")).json
    for field in ("cluster_id", "version", "controller_id", "controller_epoch", "is_current"):
        assert body[field] == whole[field]
    assert body["cluster_id"] == CLUSTER_ID
    assert (body["topic_count"], body["partition_count"]) == (2, 4)
    assert (body["offline"], body["below_min_insync"], body["under_replicated"]) == (1, 1, 1)
    worst = [(p["topic"], p["partition"], p["trouble"]) for p in body["worst_partitions"]]
    assert worst == [
        ("t", 0, "offline"),
        ("many", 1, "below_min_insync"),
        ("many", 0, "under_replicated"),
    ]
    counts = [(b["leads"], b["replicas"], b["out_of_sync"]) for b in body["brokers"]]
    assert counts == [(2, 4, 0), (1, 4, 1), (0, 4, 3)]
    known = ("broker_id", "url", "rack", "is_fenced", "is_draining")
    assert [{name: b[name] for name in known} for b in body["brokers"]] == whole["brokers"]


async def test_a_summary_names_the_worst_alone(api):
    api.node.add_topic("broken", WORST_MAX + 50)
    for number in range(WORST_MAX + 50):
        api.node.set_partition("broken", number, leader=None)
    body = (await api.get("/metadata/summary")).json
    assert body["offline"] == WORST_MAX + 50
    assert len(body["worst_partitions"]) == WORST_MAX


async def test_topics_come_a_page_at_a_time_and_as_they_are_wished_for(api):
    for number in range(60):
        api.node.add_topic(f"Topic-{number:02}", 1 + number % 3, {"retention.ms": "5"})
    body = (await api.get("/metadata/topics")).json
    assert (body["total"], len(body["topics"])) == (62, 50)
    assert await names(api, "?skip=50") == [f"Topic-{n}" for n in range(50, 60)] + ["many", "t"]
    assert await names(api, "?contains=oPiC-1&limit=3") == ["Topic-10", "Topic-11", "Topic-12"]
    assert await names(api, "?order=desc&limit=2") == ["t", "many"]
    assert await names(api, "?sort=partitions&limit=2") == ["Topic-00", "Topic-03"]
    assert await names(api, "?sort=partitions&order=DESC&limit=2") == ["Topic-02", "Topic-05"]
    assert await names(api, "?sort=configs&limit=2") == ["many", "t"]
    assert await names(api, "?sort=replicas&limit=1&skip=61") == ["t"]
    assert await names(api, "?skip=99") == await names(api, "?contains=nobody") == []
    assert (await api.get("/metadata/topics?contains=opic-1")).json["total"] == 10


async def test_a_topic_tells_what_is_wrong_with_it_and_what_the_node_has(api):
    api.node.set_partition("many", 1, leader=None)
    ids = api.node.image.topic_ids
    api.node.here = {ids["many"]: here(7, 1.5, 2.5), ids["t"]: here(9, 3)}
    rows = {t["name"]: t for t in (await api.get("/metadata/topics")).json["topics"]}
    assert rows["many"] == {
        "name": "many",
        "topic_id": ids["many"],
        "configs": {},
        "replication_factor": 3,
        "partition_count": 3,
        "offline": 1,
        "below_min_insync": 0,
        "under_replicated": 2,
        "stored_bytes_here": 7,
        "records_in_per_second_here": 1.5,
        "records_out_per_second_here": 2.5,
    }
    api.node.add_topic("elsewhere")
    assert await names(api, "?sort=trouble&order=desc&limit=1") == ["many"]
    assert await names(api, "?sort=stored_bytes") == ["elsewhere", "many", "t"]
    assert await names(api, "?sort=records_in&order=desc") == ["t", "many", "elsewhere"]
    assert await names(api, "?sort=records_out&order=desc&limit=1") == ["many"]
    elsewhere = (await api.get("/metadata/topics/elsewhere")).json
    assert elsewhere["stored_bytes_here"] is None
    assert elsewhere["partitions"][0]["stored_bytes_here"] is None


async def test_sizes_are_of_all_nodes_where_that_is_asked_for(api):
    ids = api.node.image.topic_ids
    api.node.here = {ids["many"]: here(7), ids["t"]: here(9)}
    api.node.add_topic("empty")
    page = (await api.get("/metadata/topics?sizes=all")).json
    assert page["silent_nodes"] == [3]
    sizes = {row["name"]: row["stored_bytes"] for row in page["topics"]}
    assert sizes == {"empty": None, "many": 14, "t": 18}
    query = "?sizes=all&sort=stored_bytes&order=desc"
    assert await names(api, query) == ["t", "many", "empty"]
    assert "stored_bytes" not in (await api.get("/metadata/topics")).json["topics"][0]
    topic = (await api.get("/metadata/topics/many?sizes=all&sort=stored_bytes&order=desc")).json
    assert (topic["stored_bytes"], topic["silent_nodes"]) == (14 + 15 + 16, [3])
    assert [row["stored_bytes"] for row in topic["partitions"]] == [16, 15, 14]
    assert "silent_nodes" not in (await api.get("/metadata/topics/many")).json
    refused = (400, 400)
    assert (await api.get("/metadata/topics?sizes=some")).error == refused


async def test_a_topics_partitions_come_a_page_at_a_time(api):
    api.node.here = {api.node.image.topic_ids["many"]: here(7)}
    api.node.set_partition("many", 0, leader=3, leader_epoch=7, isr=(3,))
    api.node.set_partition("many", 2, leader=None)
    body = (await api.get("/metadata/topics/many?limit=2")).json
    assert (body["partition_count"], body["min_insync_replicas"]) == (3, 2)
    assert body["partitions"] == [
        {
            "partition": 0, "leader": 3, "leader_epoch": 7, "replicas": [1, 2, 3], "isr": [3],
            "trouble": "below_min_insync", "stored_bytes_here": 100,
        },
        {
            "partition": 1, "leader": 1, "leader_epoch": 5, "replicas": [1, 2, 3], "isr": [1, 2],
            "trouble": "under_replicated", "stored_bytes_here": 101,
        },
    ]  # fmt: skip
    assert await numbers(api, "?skip=1") == [1, 2]
    assert await numbers(api, "?order=desc&limit=2") == [2, 1]
    assert await numbers(api, "?sort=leader") == [2, 1, 0]
    assert await numbers(api, "?sort=leader_epoch&order=desc") == [0, 1, 2]
    assert await numbers(api, "?sort=in_sync") == [0, 1, 2]
    assert await numbers(api, "?sort=stored_bytes&order=desc") == [2, 1, 0]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/metadata/topics?limit=0", (400, 400)),
        ("/metadata/topics?skip=-1", (400, 400)),
        ("/metadata/topics?sort=colour", (400, 400)),
        ("/metadata/topics?order=up", (400, 400)),
        ("/metadata/topics/t?sort=name", (400, 400)),
        ("/metadata/topics/nobody", (404, 40401)),
        ("/metrics?partitions=some", (400, 400)),
    ],
)
async def test_what_is_no_page_is_refused(api, path, code):
    assert (await api.get(path)).error == code


async def test_a_large_cluster_is_told_in_small_answers():
    node = FakeNode()
    for number in range(10_000):
        node.add_topic(f"topic-{number:05}", 9)
    node.add_topic("wide", 10_000)
    async with serving(node) as api:
        whole = await api.get("/metadata")
        assert len(whole.body) > 8_000_000
        summary = await api.get("/metadata/summary")
        assert (summary.json["topic_count"], summary.json["partition_count"]) == (10_001, 100_000)
        for path in (
            "/metadata/summary", "/metadata/topics", "/metadata/topics?skip=9950",
            "/metadata/topics?sort=partitions&order=desc", "/metadata/topics/wide",
            "/metadata/topics/wide?skip=9950&sort=leader", "/metrics?partitions=false",
        ):  # fmt: skip
            assert len((await api.get(path)).body) < LARGE_BYTES, path
        assert (await names(api, "?sort=partitions&order=desc&limit=1")) == ["wide"]
        most = await api.get(f"/metadata/topics?limit={10 * ROWS_MAX}")
        assert len(most.json["topics"]) == ROWS_MAX


async def test_others_are_served_while_partitions_are_counted(monkeypatch):
    node, turns = FakeNode(), []
    node.add_topic("wide", 5_000)
    real = tallies.one_turn

    def turn():
        turns.append(None)
        return real()

    monkeypatch.setattr(tallies, "one_turn", turn)
    last = LastTally()
    first, second = await asyncio.gather(last.of_all(node.image), last.of_all(node.image))
    assert first.partitions == second.partitions == 5_000
    assert len(turns) == 10
    # Nothing has changed: nothing is counted anew.
    await last.of_all(node.image)
    assert len(turns) == 10
    node.set_partition("wide", 4, leader=None)
    assert (await last.of_all(node.image)).troubled[Trouble.OFFLINE]
    assert len(turns) == 15


async def test_a_topic_whose_partitions_are_not_there_yet_has_none():
    node = FakeNode()
    topic = node.add_topic("t", 2)
    partitions = node.image.partitions.delete((topic.topic_id, 1))
    node._set_image(partitions=partitions)
    found = await tally(node.image, (topic,))
    assert found.topics[topic.topic_id].partitions == found.partitions == 1


async def test_what_a_caller_may_not_see_is_not_counted():
    node = FakeNode()
    for name in ("orders", "salaries"):
        node.add_topic(name, 2)
        node.set_partition(name, 0, leader=None)
    async with serving(node) as api:
        headers = ClosedNode(node).user("ann", Allowed("DESCRIBE", "TOPIC", "orders"))
        body = (await api.get("/metadata/summary", headers=headers)).json
        assert (body["topic_count"], body["partition_count"], body["offline"]) == (1, 2, 1)
        assert {p["topic"] for p in body["worst_partitions"]} == {"orders"}
        assert [b["replicas"] for b in body["brokers"]] == [2, 2, 2]
        body = (await api.get("/metadata/topics", headers=headers)).json
        assert (body["total"], [t["name"] for t in body["topics"]]) == (1, ["orders"])
        refusals = {
            (await api.get(f"/metadata/topics/{name}", headers=headers)).error
            for name in ("salaries", "nobody")
        }
        assert refusals == {(403, 40301)}


async def test_metrics_come_without_those_of_partitions_if_they_are_not_wanted(api):
    assert b"milena_partition_fake" in (await api.get("/metrics")).body
    brief = (await api.get("/metrics?partitions=false")).body
    assert b"milena_partition_fake" not in brief
    assert b"milena_fake 1" in brief
