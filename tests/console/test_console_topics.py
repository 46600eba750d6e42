"""Topics in a browser: made, looked at, changed and deleted."""

import asyncio

import pytest

from tests.support.clusters.live_cluster import create_topic, eventually, metadata
from tests.support.http.console_forms import open_form, until_enabled

pytestmark = [pytest.mark.integration, pytest.mark.long]


def topics_of(node):
    return {topic["name"]: topic for topic in metadata(node)["topics"]}


async def test_a_topic_is_made_with_what_the_form_says(browser, cluster):
    node = cluster.nodes[0]
    page = await browser.open(f"{node.url}/console/#/topics")
    form = await open_form(page, "Create a topic")
    await until_enabled(page, form, is_on=False)
    for field, text in enumerate(("made-here", "4", "2")):
        await page.fill(f"{form} label:nth-of-type({field + 1}) input", text)
    await page.fill(f"{form} textarea", "retention.ms=60000\n\ncleanup.policy = compact")
    await page.click(f"{form} form button")
    await page.until_shown("created made-here")
    await page.until(
        "[...document.querySelectorAll('td a')].some((e) => e.textContent === 'made-here')"
    )
    made = (await asyncio.to_thread(topics_of, node))["made-here"]
    assert made["configs"] == {"retention.ms": "60000", "cleanup.policy": "compact"}
    assert [len(p["replicas"]) for p in made["partitions"]] == [2] * 4
    assert not page.faults


async def test_a_refusal_is_shown_in_the_nodes_own_words(browser, cluster):
    page = await browser.open(f"{cluster.nodes[0].url}/console/#/topics")
    form = await open_form(page, "Create a topic")
    await page.fill(f"{form} input", "no <b>such</b> name")
    await page.click(f"{form} form button")
    await page.until_shown("Topic name 'no <b>such</b> name' has a character other than")
    await page.fill(f"{form} textarea", "no config")
    await page.click(f"{form} form button")
    await page.until_shown("“no config” is not a config: write name=value")


async def test_a_topics_page_tells_its_partitions_and_what_is_not_a_default(browser, cluster):
    node = cluster.nodes[0]
    await asyncio.to_thread(create_topic, node, "looked-at", partitions=3, retention_ms=60000)
    page = await browser.open(f"{node.url}/console/#/topics/looked-at")
    await page.until_shown("retention.ms")
    rows = "[...document.querySelectorAll('.table tbody')[{}].rows].map((r) => r.innerText.split('\\t'))"
    configs = await page.run(rows.format(1))
    assert configs[0] == ["retention.ms", "60000", "604800000"]
    assert {row[2] for row in configs[1:]} == {"is the default"}
    await page.until("document.querySelector('.table tbody').rows[2]?.cells[6].innerText === '0'")
    told = (await asyncio.to_thread(topics_of, node))["looked-at"]["partitions"]
    for row, partition in zip(await page.run(rows.format(0)), told, strict=True):
        assert row[:2] == [str(partition["partition"]), str(partition["leader"])]
        assert row[3].replace("★", "").split() == [str(one) for one in partition["replicas"]]
        assert sorted(row[4].split()) == [str(one) for one in sorted(partition["isr"])]
    assert not page.faults


async def test_a_config_is_set_and_reset_and_partitions_are_added(browser, cluster):
    node = cluster.nodes[0]
    await asyncio.to_thread(create_topic, node, "altered", partitions=1)
    page = await browser.open(f"{node.url}/console/#/topics/altered")
    form = await open_form(page, "Set a config")
    await page.until(f"document.querySelectorAll('{form} option').length > 5")
    await page.choose(f"{form} select", "segment.bytes")
    await page.fill(f"{form} label:nth-of-type(2) input", "1048576")
    await page.click(f"{form} form button")
    await page.until_shown("segment.bytes is 1048576")
    await page.until("document.querySelector('b.mono, span.set').textContent === 'segment.bytes'")
    await page.click(f"{form} input[type=checkbox]")
    await page.click(f"{form} form button", "Reset")
    await page.until_shown("segment.bytes has its default")
    assert (await asyncio.to_thread(topics_of, node))["altered"]["configs"] == {}
    form = await open_form(page, "Add partitions")
    await page.fill(f"{form} input", "1")
    await until_enabled(page, form, is_on=False)
    await page.fill(f"{form} input", "3")
    await page.click(f"{form} form button")
    await page.until_shown("has 3 partitions")
    await page.until("document.querySelector('.table tbody').rows.length === 3")
    assert not page.faults


async def test_a_topic_is_deleted_only_by_who_types_its_name(browser, cluster):
    node = cluster.nodes[0]
    await asyncio.to_thread(create_topic, node, "doomed", partitions=1)
    page = await browser.open(f"{node.url}/console/#/topics/doomed")
    form = await open_form(page, "Delete the topic")
    for typed, is_off in (("", True), ("Doomed", True), ("doomed ", True), ("doomed", False)):
        await page.fill(f"{form} input", typed)
        await until_enabled(page, form, is_on=not is_off)
    await page.click(f"{form} form button")
    await page.until("location.hash === '#/topics'")
    await asyncio.to_thread(eventually, lambda: "doomed" not in topics_of(node))
    assert [method for method, _ in page.requests if method != "GET"] == ["DELETE"]
    assert not page.faults


async def test_a_topic_that_is_gone_is_said_to_be(browser, cluster):
    page = await browser.open(
        f"{cluster.nodes[0].url}/console/#/topics/%3Cimg%20src%3Dx%3E%E2%80%AE"
    )
    await page.until_shown("There is no such topic")
    assert await page.run("document.querySelector('h1 .name').textContent") == "<img src=x>⟨202E⟩"
    assert await page.run("document.querySelectorAll('main img').length") == 0
