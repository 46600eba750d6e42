"""Lists a page at a time: groups, their members and lags, transactions, moves; of any size in small answers."""

import pytest

from http_api.describing.pages import ROWS_MAX
from milena.model.errors import NoLeaderError
from tests.support.fakes.listed import committed, open_part
from tests.support.fakes.ports import FakeNode
from tests.support.http.api_server import serving
from tests.support.http.credentials import Allowed, ClosedNode

LARGE_BYTES = 64 << 10
"""A page of 50 rows takes less, however many there are."""
MANY = 10_000
OPEN = 5_000


async def told(api, path, of, field):
    return [row[field] for row in (await api.get(path)).json[of]]


# -- groups ----------------------------------------------------------------------------------------


async def test_groups_come_a_page_at_a_time_and_as_they_are_wished_for(api):
    groups = api.node.groups
    for number in range(12):
        groups.put(f"Group-{number:02}", [committed("t", 0)])
    for member in ("a", "b"):
        groups.join("Group-03", member, ["t"], None)
    groups.join("other", "c", ["t"], None)

    async def ids(query):
        return await told(api, f"/groups{query}", "groups", "group_id")

    assert len(await ids("")) == 13
    assert await ids("?limit=2") == ["Group-00", "Group-01"]
    assert await ids("?skip=11") == ["Group-11", "other"]
    assert await ids("?contains=oUP-1&order=desc") == ["Group-11", "Group-10"]
    assert await ids("?sort=members&order=desc&limit=2") == ["Group-03", "other"]
    assert await ids("?sort=state&order=desc&limit=2") == ["Group-03", "other"]
    assert await ids("?sort=coordinator&limit=1&skip=12") == ["other"]
    assert (await api.get("/groups?contains=group&limit=1")).json["total"] == 12


async def test_groups_come_in_the_order_of_their_lag_which_is_told_then(api):
    node = api.node
    for at in range(5):
        await api.post("/topics/many/partitions/0", {"records": [{"value": at}]})
    node.groups.put("behind", [committed("many", 0, 1), committed("many", 1, 0)])
    node.groups.put("there", [committed("many", 0, 5)])
    node.groups.put("beyond", [committed("many", 0, 9)])
    node.groups.join("new", "m", ["many"], None)

    async def lags(query):
        return [
            (row["group_id"], row["lag"])
            for row in (await api.get(f"/groups?sort=lag{query}")).json["groups"]
        ]

    unknown = [("beyond", None), ("new", None)]
    assert await lags("") == [*unknown, ("there", 0), ("behind", 4)]
    assert await lags("&order=desc&limit=1") == [("behind", 4)]
    assert await lags("&contains=there") == [("there", 0)]
    assert "lag" not in (await api.get("/groups?limit=1")).json["groups"][0]


async def test_a_groups_lag_is_told_by_partition(api):
    node = api.node
    for partition, (written, read) in enumerate(((5, 2), (9, 9), (4, 0))):
        for at in range(written):
            await api.post(f"/topics/many/partitions/{partition}", {"records": [{"value": at}]})
        node.groups.put("g", [committed("many", partition, read)])
    node.groups.put("g", [committed("t", 0, 0)])
    node.groups.join("g", "m1", ["many"], None)
    first = (await api.get("/groups/g/lags?limit=1")).json
    assert first == {
        "group_id": "g", "kind": "server", "state": "STABLE", "generation": 1, "assignor": "sticky",
        "coordinator": 1, "member_count": 1, "total": 4,
        "lags": [
            {
                "topic": "many", "partition": 0, "offset": 2, "end_offset": 5, "lag": 3,
                "member_id": "m1", "commit_timestamp": first["lags"][0]["commit_timestamp"],
                "metadata": "",
            }
        ],
    }  # fmt: skip

    async def places(query):
        rows = (await api.get(f"/groups/g/lags{query}")).json["lags"]
        return [(row["topic"], row["partition"]) for row in rows]

    many = [("many", 0), ("many", 1), ("many", 2)]
    assert await places("") == [*many, ("t", 0)]
    assert await places("?sort=lag&order=desc&limit=2") == [many[2], many[0]]
    assert await places("?sort=end_offset&contains=MAN") == [many[2], many[0], many[1]]
    assert await places("?sort=offset&order=desc&limit=1") == [many[1]]
    assert await places("?sort=member&limit=1") == [("t", 0)]
    assert await places("?sort=committed&skip=3") == [("t", 0)]
    assert (await api.get("/groups/g/lags?contains=any")).json["total"] == 3
    assert (await api.get("/groups/nobody/lags")).error == (404, 40405)


async def test_a_leader_that_is_silent_hides_its_own_partition_alone(api, monkeypatch):
    node = api.node
    node.groups.put("g", [committed("many", 0, 1), committed("many", 1, 0)])
    node.groups.put("other", [committed("many", 1, 0)])
    real, asked = node.offsets, []

    async def offsets(topic, partition, **options):
        asked.append(partition)
        if partition == 0:
            raise NoLeaderError("nobody leads it")
        return await real(topic, partition, **options)

    monkeypatch.setattr(node, "offsets", offsets)
    for query in ("", "?sort=lag"):
        rows = (await api.get(f"/groups/g/lags{query}")).json["lags"]
        assert [(row["partition"], row["end_offset"], row["lag"]) for row in rows] == [
            (0, None, None), (1, 0, 0),
        ]  # fmt: skip
    asked.clear()
    by_lag = (await api.get("/groups?sort=lag")).json["groups"]
    assert [(row["group_id"], row["lag"]) for row in by_lag] == [("g", None), ("other", 0)]
    assert sorted(asked) == [0, 1], "each leader is asked once, whatever the number of groups"
    asked.clear()
    assert (await api.get("/groups/g/lags?skip=1")).json["lags"][0]["partition"] == 1
    assert asked == [1]
    cluster = node.image.cluster_id
    summary = await api.get(f"/v3/clusters/{cluster}/consumer-groups/g/lag-summary")
    assert (summary.json["max_lag"], summary.json["total_lag"]) == (0, None)


async def test_members_come_a_page_at_a_time(api):
    node = api.node
    for member in ("B", "a1", "a2"):
        node.groups.join("g", member, ["many"], None)
    body = (await api.get("/groups/g/members?limit=1&partitions=0&sort=partitions&order=desc")).json
    assert (body["group_id"], body["member_count"], body["total"]) == ("g", 3, 3)
    (row,) = body["members"]
    assert (row["assignment"], row["assignment_count"]) == ([], 1)
    assert (row["revoking_count"], row["pending_count"]) == (0, 0)

    async def ids(query):
        return await told(api, f"/groups/g/members{query}", "members", "member_id")

    assert await ids("") == ["B", "a1", "a2"]
    assert await ids("?contains=A&skip=1") == ["a2"]
    assert await ids("?sort=epoch&order=desc&limit=1") == ["B"]
    assert (await api.get("/groups/nobody/members")).error == (404, 40405)


async def test_lags_are_of_topics_that_the_caller_may_see():
    node = FakeNode()
    for topic in ("orders", "salaries"):
        node.add_topic(topic)
        node.groups.put("g", [committed(topic, 0)])
    async with serving(node) as api:
        headers = ClosedNode(node).user(
            "ann", Allowed("DESCRIBE", "TOPIC", "orders"), Allowed("DESCRIBE", "GROUP", "g")
        )
        body = (await api.get("/groups/g/lags", headers=headers)).json
        assert (body["total"], [row["topic"] for row in body["lags"]]) == (1, ["orders"])


# -- transactions, moves ---------------------------------------------------------------------------


async def test_open_transactions_come_a_page_at_a_time(api):
    api.node.transactions.open = [
        open_part(1, began_ms=10),
        open_part(1, "many", 1, began_ms=12),
        open_part(1, "many", 0, began_ms=12),
        open_part(2, began_ms=20, timeout_ms=1),
        open_part(3, name="Nightly", began_ms=30, timeout_ms=2),
    ]

    async def ids(query):
        return await told(api, f"/transactions{query}", "transactions", "producer_id")

    assert await ids("") == [1, 2, 3]
    assert await ids("?contains=NIGHT") == [3]
    assert await ids("?sort=deadline&limit=2") == [2, 3]
    assert await ids("?sort=timeout&order=desc&limit=1") == [1]
    assert await ids("?sort=partitions&order=desc&limit=1") == [1]
    assert await ids("?sort=transaction&order=desc&skip=2") == [3]
    body = (await api.get("/transactions?limit=1&partitions=2")).json
    (row,) = body["transactions"]
    assert (body["total"], row["partition_count"]) == (3, 3)
    assert [(p["topic"], p["partition"]) for p in row["partitions"]] == [("many", 0), ("many", 1)]


async def test_moves_come_a_page_at_a_time(api):
    api.node.add_broker(4, is_fenced=False)
    api.node.add_topic("alone", 1)
    targets = [
        {"topic": topic, "partition": partition, "replicas": [1, 2, 4]}
        for topic, partition in (("t", 0), ("many", 1), ("many", 0), ("alone", 0))
    ]
    assert (await api.post("/reassignments", {"partitions": targets})).status == 200

    async def places(query):
        rows = (await api.get(f"/reassignments{query}")).json["reassignments"]
        return [(row["topic"], row["partition"]) for row in rows]

    whole = [("alone", 0), ("many", 0), ("many", 1), ("t", 0)]
    assert await places("") == whole
    assert await places("?skip=1&limit=2") == whole[1:3]
    assert await places("?contains=MAN&order=desc") == [("many", 1), ("many", 0)]
    assert (
        await places("?sort=state&limit=1") == await places("?sort=bytes_left&limit=1") == whole[:1]
    )
    assert (await api.get("/reassignments?contains=man&limit=1")).json["total"] == 2


# -- all of them -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/groups", "/groups/g/lags", "/groups/g/members", "/transactions", "/reassignments"]
)
@pytest.mark.parametrize("query", ["limit=0", "skip=-1", "sort=colour", "order=up", "contain=x"])
async def test_what_is_no_page_is_refused(api, path, query):
    api.node.groups.put("g", [committed("t", 0)])
    assert (await api.get(f"{path}?{query}")).error == (400, 400)


async def test_a_large_cluster_is_told_in_small_answers():
    node = FakeNode()
    node.add_topic("wide", MANY)
    for number in range(MANY):
        node.groups.put(f"group-{number:05}", [committed("wide", number)])
        node.groups.put("reads-all", [committed("wide", number)])
    node.groups.join("reads-all", "m1", ["wide"], None)
    node.transactions.open = [
        *(open_part(number, "wide", number) for number in range(OPEN)),
        *(open_part(OPEN, "wide", number) for number in range(1_000)),
    ]
    async with serving(node) as api:
        for path in (
            "/groups?limit=50", "/groups?limit=50&skip=9950&sort=members",
            "/groups/reads-all/lags", "/groups/reads-all/lags?skip=9950",
            "/groups/reads-all/lags?sort=lag&order=desc",
            "/groups/reads-all/members?partitions=20",
            "/transactions?limit=50&partitions=5",
            "/transactions?limit=50&partitions=5&sort=partitions&order=desc",
        ):  # fmt: skip
            answer = await api.get(path)
            assert answer.status == 200
            assert len(answer.body) < LARGE_BYTES, path
        assert (await api.get("/groups?limit=1")).json["total"] == MANY + 1
        most = (await api.get(f"/groups?limit={10 * ROWS_MAX}")).json
        assert len(most["groups"]) == ROWS_MAX
