"""The console where there is much of everything, or where hardly anything is left of the cluster."""

import asyncio
import base64

import pytest

from tests.support.clusters.live_cluster import call, create_topic, ok, running_cluster
from tests.support.fakes.ports import FakeNode
from tests.support.http.api_server import serving

pytestmark = [pytest.mark.integration, pytest.mark.long]

BINARY = "application/vnd.kafka.binary.v2+json"
FRAMES = (
    "window.painted = 0;"
    " (function paint() { window.painted++; requestAnimationFrame(paint); })(); true"
)


async def test_ten_thousand_topics_are_shown_a_page_at_a_time(browser):
    node = FakeNode()
    for number in range(10_000):
        node.add_topic(f"topic-{number:05}", 10)
    async with serving(node) as api:
        for place in ("#/topics", "#/messages"):
            page = await browser.open(f"{api.base_url}/console/{place}")
            await page.until_shown("10,000 rows")
            assert await page.run("document.querySelectorAll('tbody tr').length") == 50
            await page.fill("input[type=search]", "topic-09999")
            await page.until_shown("1 of 10,000 rows")
            assert await page.run("document.querySelector('tbody a').textContent") == "topic-09999"
            assert await page.run("document.querySelectorAll('*').length") < 1_000
            assert not page.faults
        page = await browser.open(f"{api.base_url}/console/#/")
        await page.until_shown("100,000")
        await page.click("nav a", "Nodes")
        await page.until_shown("Address")
        assert not page.faults


async def test_a_flood_that_is_followed_leaves_the_page_in_the_readers_hands(browser, cluster):
    node = cluster.nodes[0]
    await asyncio.to_thread(create_topic, node, "flood", partitions=1)
    value = base64.b64encode(b"x" * 100).decode()
    body = {"records": [{"value": value}] * 5_000}

    def write() -> None:
        for _ in range(8):
            ok(call(node, "POST /topics/flood/partitions/0", body, content_type=BINARY))

    page = await browser.open(f"{node.url}/console/#/messages/flood?from=live")
    await page.until_shown("Following: 0 records came")
    await page.run(FRAMES)
    writing = asyncio.create_task(asyncio.to_thread(write))
    seen = []
    while not writing.done():
        # It answers, and paints, while they come.
        seen.append(await page.run("window.painted"))
        await asyncio.sleep(0.05)
    await writing
    await page.until_shown("40,000 records came, the last 200 are shown")
    assert seen[-1] > seen[0]
    assert await page.run("document.querySelectorAll('tbody tr').length") == 50
    await page.click("nav a", "Groups")
    await page.until("document.querySelector('h1').textContent === 'Groups'")
    assert not page.faults


@pytest.fixture
def doomed(tmp_path):
    with running_cluster(tmp_path / "doomed") as cluster:
        yield cluster


async def test_without_a_quorum_every_page_says_so_and_shows_what_was_known(browser, doomed):
    node, *others = doomed.nodes
    page = await browser.open(f"{node.url}/console/#/")
    await page.until_shown("No topics yet")
    await asyncio.to_thread(create_topic, node, "known", partitions=1)
    for gone in others:
        gone.process.kill()
    await page.until_shown("No majority of the metadata quorum answers")
    for place in ("#/topics", "#/nodes", "#/messages"):
        lost = await browser.open(f"{node.url}/console/{place}")
        await lost.until_shown("What is shown is what this node knew last")
        assert not lost.faults
    assert not page.faults
