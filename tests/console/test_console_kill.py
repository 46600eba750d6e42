"""Every page says what the API says, while a node is killed and when it is back."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote

import pytest

from tests.support.clusters.live_cluster import call, eventually, metadata, ok, running_cluster
from tests.support.http.console_cluster import EVIL_GROUP, fill

pytestmark = [pytest.mark.integration, pytest.mark.long]

DEADLINE_S = 60
CELLS = (
    "(() => {{ const table = document.querySelector({}); return table ?"
    " [...table.querySelectorAll('tbody tr')].map((r) => {}.map((at) => r.cells[at].innerText.trim()))"
    " : null; }})()"
)


@dataclass(frozen=True)
class Told:
    """A table of a page: some of its columns, and what the API says of them."""

    place: str
    caption: str
    columns: tuple[int, ...]
    path: str
    rows: Callable[[object, "Asker"], list[list[str]]]

    @property
    def cells(self) -> str:
        return CELLS.format(
            json.dumps(f"[aria-label={json.dumps(self.caption)}]"), list(self.columns)
        )


Asker = Callable[[str], object]


def spaced(ids) -> str:
    return " ".join(map(str, ids))


def number(count) -> str:
    return f"{count:,}"


def of_nodes(body, ask):
    states = {(True, False): "gone", (False, True): "draining", (False, False): "up"}
    return [
        [
            str(b["broker_id"]), states[b["is_fenced"], b["is_draining"]],
            number(b["leads"]), number(b["replicas"]), number(b["out_of_sync"]),
        ]
        for b in body["brokers"]
    ]  # fmt: skip


def of_topics(body, ask):
    return [
        [t["name"], number(t["partition_count"]), number(t["replication_factor"])]
        for t in body["topics"]
    ]


def of_topic(body, ask):
    return [
        [
            str(p["partition"]), "none" if p["leader"] is None else str(p["leader"]),
            number(p["leader_epoch"]), spaced(p["isr"]),
            number(ask(f"/topics/orders/partitions/{p['partition']}/offsets")["end_offset"]),
        ]
        for p in body["partitions"]
    ]  # fmt: skip


def of_records(body, ask):
    """Newest first, as the page has them."""
    told = [[str(r["partition"]), str(r["offset"])] for r in body]
    return sorted(told, key=lambda row: -int(row[1]))


def of_groups(body, ask):
    return [
        [g["group_id"], g["state"].lower(), g["kind"], number(g["member_count"])]
        for g in body["groups"]
    ]


def of_lags(body, ask):
    return [
        [row["topic"], str(row["partition"]), str(row["offset"]), number(row["end_offset"]), number(row["lag"])]
        for row in body["lags"]
    ]  # fmt: skip


def of_members(body, ask):
    return [[m["member_id"], number(m["member_epoch"])] for m in body["members"]]


def of_transactions(body, ask):
    return [
        [t["transactional_id"], f"{t['producer_id']}:{t['producer_epoch']}"]
        for t in body["transactions"]
    ]


def of_users(body, ask):
    return [
        [u["name"], number(u["password_count"]), number(u["token_count"])] for u in body["users"]
    ]


def of_tokens(body, ask):
    return [[token["note"]] for token in body["tokens"]]


def of_names(body, ask):
    return [row[:2] for row in of_topics(body, ask)]


def of_moves(body, ask):
    return body["reassignments"]


EVIL = f"groups/{quote(EVIL_GROUP, safe='')}"
LAST = "/topics/orders/partitions/2/records?offset=-8"
LAG = (0, 1, 2, 3, 4)
TOLD = (
    Told("#/nodes", "Nodes", (0, 1, 4, 5, 6), "/metadata/summary", of_nodes),
    Told("#/topics", "Topics", (0, 2, 3), "/metadata/topics", of_topics),
    Told("#/topics/orders", "Partitions", (0, 1, 2, 4, 6), "/metadata/topics/orders", of_topic),
    Told("#/messages", "Topics", (0, 1), "/metadata/topics", of_names),
    Told("#/messages/orders?partition=2&count=8", "Records", (0, 1), LAST, of_records),
    Told("#/groups", "Groups", (0, 1, 2, 3), "/groups", of_groups),
    Told("#/groups/billing", "Committed offsets", LAG, "/groups/billing/lags", of_lags),
    Told(f"#/{EVIL}", "Committed offsets", LAG, f"/{EVIL}/lags", of_lags),
    Told("#/groups/served", "Members", (0, 6), "/groups/served/members", of_members),
    Told("#/transactions", "Open transactions", (0, 1), "/transactions", of_transactions),
    Told("#/moves", "Moves in progress", (), "/reassignments", of_moves),
    Told("#/access", "Users", (0, 2, 3), "/users", of_users),
    Told("#/access/alice", "Tokens", (1,), "/users/alice/tokens", of_tokens),
)


@pytest.fixture
def filled(tmp_path):
    with running_cluster(tmp_path / "killed") as cluster:
        fill(cluster.nodes[0])
        ok(call(cluster.nodes[0], "POST /groups/served/heartbeat", {
            "member_id": "m1", "member_epoch": 0, "topics": ["visits"], "owned": [],
            "session_timeout_ms": 300_000,
        }))  # fmt: skip
        yield cluster


async def until_the_same(page, node, told: Told) -> None:
    """The page has, within its next looks, what the API says at one and the same time."""

    def ask(path: str):
        return ok(call(node, f"GET {path}"))

    def expected():
        return told.rows(ask(told.path), ask)

    end = time.monotonic() + DEADLINE_S
    while True:
        before = await asyncio.to_thread(expected)
        seen = await page.run(told.cells)
        if seen == before and await asyncio.to_thread(expected) == before:
            return
        assert time.monotonic() < end, (told.place, seen, before)
        await asyncio.sleep(0.5)


async def test_every_page_says_what_the_api_says_while_a_node_is_killed(browser, filled):
    asked, _, killed = filled.nodes
    pages = {told.place: await browser.open(f"{asked.url}/console/{told.place}") for told in TOLD}

    async def all_the_same() -> None:
        for told in TOLD:
            await until_the_same(pages[told.place], asked, told)

    def is_fenced() -> bool:
        return [b["is_fenced"] for b in metadata(asked)["brokers"]] == [False, False, True]

    await all_the_same()
    killed.process.kill()
    await asyncio.to_thread(eventually, is_fenced)
    cluster = await browser.open(f"{asked.url}/console/#/")
    await cluster.until_shown("Node 3 gone")
    await cluster.until_shown("2 of 3")
    await all_the_same()
    killed.process.start()
    await cluster.until_shown("Healthy")
    await all_the_same()
    assert not [fault for page in (cluster, *pages.values()) for fault in page.faults]
