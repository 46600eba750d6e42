"""What somebody who sees the console for the first time comes for, in as many clicks as its document says."""

import asyncio
import re
import time
from pathlib import Path

import pytest

from tests.support.clusters.live_cluster import call, create_topic, eventually, ok
from tests.support.http.chromium import Page

pytestmark = [pytest.mark.integration, pytest.mark.long]

DOCUMENT = Path(__file__).parents[2] / "docs" / "console.md"
HOUR_MS = 3_600_000


def documented() -> dict[str, int]:
    """Tasks of the document, and the clicks that it says they take."""
    text = DOCUMENT.read_text(encoding="utf-8")
    return {
        task: int(clicks)
        for task, clicks in re.findall(r"^\| ([^|]+) \| [^|]+ \| (\d+) \|$", text, re.MULTILINE)
    }


class Reader:
    """Somebody with a mouse, whose clicks are counted; what is typed counts with the click that sends it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.clicks = 0

    async def click(self, selector: str, text: str = "") -> None:
        self.clicks += 1
        await self.page.click(selector, text)

    async def choose(self, selector: str, value: str) -> None:
        self.clicks += 1
        await self.page.choose(selector, value)


@pytest.fixture
async def reader(browser, cluster):
    page = await browser.open(f"{cluster.nodes[0].url}/console/")
    await page.until_shown("Healthy")
    return Reader(page)


@pytest.fixture(scope="module")
def shop(cluster):
    """Two groups, of which one is behind; a partition that takes all; an hour of records; a topic that was deleted."""
    node = cluster.nodes[0]
    create_topic(node, "__audit", partitions=1)
    for topic in ("orders", "payments"):
        create_topic(node, topic, partitions=3)
    now_ms = int(time.time() * 1000)
    records = [
        {
            "value": f"{number} {'x' * 500}",
            "timestamp": now_ms - 2 * HOUR_MS + number * HOUR_MS // 50,
        }
        for number in range(100)
    ]
    ok(call(node, "POST /topics/orders/partitions/1", {"records": records}))
    for group, offset in (("slow", 10), ("fast", 100)):
        offsets = [{"topic": "orders", "partition": 1, "offset": offset, "metadata": ""}]
        call(node, f"POST /groups/{group}/offsets", {"offsets": offsets})
    cluster_id = ok(call(node, "GET /metadata"))["cluster_id"]
    call(node, f"DELETE /v3/clusters/{cluster_id}/topics/payments")

    def is_seen() -> bool:
        told = ok(call(node, "GET /history"))
        busy = [(row["topic"], row["partition"]) for row in told["busiest_partitions"]]
        lines = ok(call(node, "GET /topics/__audit/partitions/0/records"))
        return ("orders", 1) in busy and any("delete_topic" in str(line) for line in lines)

    eventually(is_seen, deadline_s=60)
    return node


def rows(caption: str) -> str:
    return f"[...document.querySelectorAll('[aria-label=\"{caption}\"] tbody tr')].map((r) => r.innerText.split('\\t'))"


async def test_find_the_slow_consumer(reader, shop):
    await reader.click("nav a", "Groups")
    await reader.page.until(f"{rows('Groups')}.some((r) => r[0] === 'slow' && r[4] === '90')")
    await reader.click("td a", "slow")
    await reader.page.until(
        f"{rows('Committed offsets')}.some((r) => r[0] === 'orders' && r[4] === '90')"
    )
    assert reader.clicks == documented()["find the slow consumer"]


async def test_find_the_hot_partition(reader, shop):
    await reader.page.until(f"{rows('Busiest partitions')}[0]?.slice(0, 2) + '' === 'orders,1'")
    assert reader.clicks == documented()["find the hot partition"]


async def test_replay_a_group_from_an_hour_ago(reader, shop):
    page = reader.page
    await reader.click("nav a", "Groups")
    await reader.click("td a", "fast")
    await reader.click("summary", "Reset offsets")
    await reader.choose("details[open] select", "time")
    local = "new Date(Date.now() - 3600000 - new Date().getTimezoneOffset() * 60000).toISOString().slice(0, 19)"
    await page.until(
        "{ const field = document.querySelector('input[type=datetime-local]'); if (!field) return false;"
        f" field.value = {local}; field.dispatchEvent(new Event('input', {{ bubbles: true }})); return true; }}"
    )
    await reader.click("details[open] form button", "Preview")
    await page.until_shown("nothing has changed yet")
    await reader.click("details[open] form button", "Reset")
    await page.until_shown("done")
    offsets = ok(await asyncio.to_thread(call, shop, "GET /groups/fast/offsets"))["offsets"]
    # Of two hours with fifty records each.
    assert 45 <= offsets["orders"]["1"]["offset"] <= 55
    assert reader.clicks == documented()["replay a group from an hour ago"]


async def test_see_who_deleted_a_topic(reader, shop):
    page = reader.page
    await reader.click("nav a", "Messages")
    await reader.click("td a", "__audit")
    await page.fill('input[aria-describedby="filter-help"]', 'value.action = "delete_topic"')
    await page.until("!document.querySelector('.ask button').disabled")
    await reader.click(".ask button", "Read")
    await page.until(
        f"{rows('Records')}.length === 1 && {rows('Records')}[0][4].includes('payments')"
        f" && {rows('Records')}[0][4].includes('principal')"
    )
    assert reader.clicks == documented()["see who deleted a topic"]
