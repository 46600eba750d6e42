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
    # A mean of its minute, in which the group may have been behind for a part alone.
    newest = f"Number({chart('Lag')}.querySelector('tbody tr')?.innerText.split('\\t')[1])"
    await page.until(f"{newest} > 0")
    assert await page.run(newest) <= 150
    assert not page.faults


async def test_a_table_has_the_means_of_minutes_and_a_line_the_gaps_of_what_is_not_known(
    browser, hour
):
    page = await browser.open(f"{hour.url}/console/")
    await page.until_shown("The last hour")
    # The last value is of 12:01:20, in steps of half a minute.
    lines = [{"label": "a", "values": [None, None, 4, 6, 1, None]}]
    rows = await page.run(
        "import('./chart.js').then(({ minutes }) =>"
        f" minutes({json.dumps(lines)}, Date.UTC(2026, 0, 1, 12, 1, 20), 30000)"
        ".map(({ minute, means }) => [new Date(minute).toISOString().slice(11, 16), ...means]))"
    )
    assert rows == [["12:00", 3.5], ["11:59", 4]]
    path = await page.run(
        "import('./chart.js').then(({ pathOf, roundAbove, sinceKnown }) =>"
        " [pathOf([0, 10, null, 5, null], 10), roundAbove(230), roundAbove(3000, true),"
        " sinceKnown([{ values: [...Array(40).fill(null), ...Array(35).fill(1)] }])[0].values.length])"
    )
    # One node is not asked yet, one missed a look, and one was started late.
    summed = await page.run(
        "import('./history.js').then(({ sums }) =>"
        " sums([[1, 1, 1, 1], [2, null, 2, null], [null, null, 4, 4]]))"
    )
    assert summed == [3, None, 7, None]
    assert path == ["M0.0 150.0L150.0 0.0M450.0 75.0h1", 500, 5120, 35]


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
        await page.until_shown("1 node did not respond (3)")
        assert not page.faults
    finally:
        gone.process.start()
    await asyncio.to_thread(eventually, lambda: ok(call(gone, "GET /readyz")))
