"""The last hour in a browser: charts and their tables, and the partitions with the most traffic."""

import asyncio
import json

import pytest

from tests.support.clusters.live_cluster import call, create_topic, eventually, ok

pytestmark = [pytest.mark.integration, pytest.mark.long]

CHART = "[...document.querySelectorAll('figure.chart')].find((e) => e.innerText.startsWith({}))"
BUSIEST = (
    "[...document.querySelectorAll('[aria-label=\"Busiest partitions\"] tbody tr')]"
    ".map((r) => r.innerText.split('\\t'))"
)


def chart(title: str) -> str:
    return CHART.format(json.dumps(title))


@pytest.fixture(scope="module")
def hour(cluster):
    """A topic whose partition 1 takes all, and a group that is behind; every node has looked at it."""
    node = cluster.nodes[0]
    create_topic(node, "hot", partitions=3)
    body = {"records": [{"value": "x" * 100} for _ in range(200)]}
    ok(call(node, "POST /topics/hot/partitions/1", body))
    offsets = [{"topic": "hot", "partition": 1, "offset": 50, "metadata": ""}]
    call(node, "POST /groups/slow/offsets", {"offsets": offsets})

    def is_seen() -> bool:
        told = ok(call(node, "GET /history?group=slow"))
        return bool(told["series"]) and 150 in told["series"][0]["values"]

    eventually(is_seen, deadline_s=60)
    return node


async def test_charts_tell_the_same_as_the_table_beside_them(browser, hour):
    page = await browser.open(f"{hour.url}/console/#/groups/slow")
    await page.until(f"{chart('Lag')}?.querySelector('path.line')?.getAttribute('d').length > 5")
    label = await page.run(f"{chart('Lag')}.querySelector('svg').getAttribute('aria-label')")
    assert "records behind now 150" in label
    await page.run(f"{chart('Lag')}.querySelector('button').click()")
    await page.until(f"{chart('Lag')}.querySelector('tbody tr')?.innerText.endsWith('150')")
    assert not page.faults


@pytest.mark.parametrize("width", [1280, 390])
async def test_the_busiest_partition_is_named_on_the_pages_of_cluster_and_topics(
    browser, hour, width
):
    for place in ("#/", "#/topics", "#/topics/hot"):
        page = await browser.open(f"{hour.url}/console/{place}", width=width)
        await page.until(f"{BUSIEST}.some((r) => r[0] === 'hot' && r[1] === '1')")
        assert await page.run("document.documentElement.scrollWidth") <= width
        assert not page.faults


async def test_each_node_has_a_line_of_its_own_and_one_that_is_gone_is_named(
    browser, cluster, hour
):
    page = await browser.open(f"{hour.url}/console/#/nodes")
    await page.until(f"{chart('Free disk')}?.querySelectorAll('path.line').length === 3")
    gone = cluster.nodes[2]
    gone.process.kill()
    try:
        page = await browser.open(f"{hour.url}/console/#/nodes")
        await page.until_shown("1 node did not answer (3)")
        assert not page.faults
    finally:
        gone.process.start()
    await asyncio.to_thread(eventually, lambda: ok(call(gone, "GET /readyz")))
