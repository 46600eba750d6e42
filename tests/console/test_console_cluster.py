"""The console in a browser: what every page keeps to, and the cluster's and the nodes' pages."""

import asyncio
import subprocess

import aiohttp
import pytest
from aiohttp import web

from tests.support.clusters.live_cluster import call, create_topic, eventually, metadata, ok
from tests.support.http.http_server import serving

pytestmark = [pytest.mark.integration, pytest.mark.long]

PAGES = {
    "#/": "Healthy",
    "#/nodes": "This node, 1",
    "#/topics": "Create a topic",
    "#/messages": "Messages",
    "#/groups": "No groups yet",
    "#/transactions": "No transaction is open",
    "#/moves": "No move is in progress",
    "#/api": "Ids of live brokers",
    "#/api/fetchRecords": "Read records",
    "#/nonsense": "no such page",
    "#/%": "no such page",
}


def console(node, place="#/"):
    return f"{node.url}/console/{place}"


@pytest.mark.parametrize("is_dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
async def test_each_page_is_of_its_node_alone_and_as_wide_as_the_screen(
    browser, cluster, width, is_dark
):
    node = cluster.nodes[0]
    for place, shown in PAGES.items():
        page = await browser.open(console(node, place), width=width, is_dark=is_dark)
        await page.until_shown(shown)
        assert not page.faults
        assert {url.startswith(node.url) for _, url in page.requests} == {True}
        assert {method for method, _ in page.requests} == {"GET"}
        assert await page.run("document.documentElement.scrollWidth") <= width
        ground = await page.run("getComputedStyle(document.body).backgroundColor")
        assert (int(ground[4:].split(",")[0]) < 128) is is_dark


async def test_a_keyboard_is_enough(browser, cluster):
    page = await browser.open(console(cluster.nodes[0]))
    await page.until_shown("Healthy")
    await page.press("Tab")
    assert "Skip" in await page.run("document.activeElement.textContent")
    await page.press("Enter")
    assert await page.run("document.activeElement.tagName") == "MAIN"
    # Each link and button of the bar in turn, with an outline that is seen.
    await page.run("document.querySelector('.skip').focus()")
    reached = []
    while (len(reached) < 20) and "Nodes" not in reached:
        await page.press("Tab")
        reached.append(await page.run("document.activeElement.textContent.trim()"))
        assert await page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    await page.press("Enter")
    await page.until_shown("This node, 1")
    await page.until("document.activeElement.tagName === 'H1'")
    assert await page.run("document.title") == "Nodes · Milena"


async def test_the_commands_of_a_page_run_in_a_shell(browser, cluster):
    for place in ("#/", "#/nodes"):
        page = await browser.open(console(cluster.nodes[0], place))
        commands = (await page.until("document.querySelector('.curl pre')?.textContent")).split(
            "\n"
        )
        assert len(commands) > 1
        for command in commands:
            done = subprocess.run(
                ["sh", "-c", f"{command} -f"], capture_output=True, text=True, check=True
            )
            assert done.stdout


async def test_it_works_below_whatever_path_a_proxy_serves_the_node_under(browser, cluster):
    async def forward(request: web.Request) -> web.Response:
        target = cluster.nodes[0].url + request.raw_path.removeprefix("/some/log")
        async with (
            aiohttp.ClientSession() as session,
            session.get(target, allow_redirects=False) as answer,
        ):
            kept = ("Content-Type", "Location", "Content-Security-Policy")
            headers = {name: answer.headers[name] for name in kept if name in answer.headers}
            return web.Response(body=await answer.read(), status=answer.status, headers=headers)

    proxy = web.Application()
    proxy.router.add_get("/some/log/{rest:.*}", forward)
    async with serving(proxy) as url:
        page = await browser.open(f"{url}/some/log/console")
        await page.until_shown("Healthy")
        assert not page.faults
        assert {asked.startswith(f"{url}/some/log/") for _, asked in page.requests} == {True}
        # What is shown for a shell goes the same way.
        assert f"{url}/some/log/metadata" in await page.run("document.body.textContent")


async def test_what_is_wrong_comes_first(browser, cluster):
    asked, _, gone = cluster.nodes
    await asyncio.to_thread(create_topic, asked, "orders", partitions=3)
    page = await browser.open(console(asked))
    await page.until_shown("Healthy")
    gone.process.kill()
    try:
        await page.until_shown("Node 3 gone")
        await page.until_shown("3 partitions under-replicated")
        # The worst first: nothing can be done without node 3, while all goes on with two of three.
        found = await page.run(
            "[...document.querySelectorAll('.findings strong')].map((e) => e.textContent)"
        )
        assert "gone" in found[0]
        assert "Healthy" not in await page.run("document.body.innerText")
        assert await page.run("document.querySelectorAll('table tbody tr').length") == 3
        nodes = await browser.open(console(asked, "#/nodes"))
        await nodes.until("document.querySelectorAll('tbody tr')[2]?.innerText.includes('gone')")
    finally:
        gone.process.start()
    await asyncio.to_thread(
        eventually, lambda: not any(b["is_fenced"] for b in metadata(asked)["brokers"])
    )
    await page.until_shown("Healthy")
    assert not page.faults


async def test_a_node_that_is_silent_is_said_to_be_and_the_others_are_named(browser, cluster):
    silent, other, _ = cluster.nodes
    page = await browser.open(console(silent))
    await page.until_shown("Healthy")
    silent.process.kill()
    try:
        await page.until_shown("This node cannot be reached")
        assert await page.run(
            f"document.querySelector('a[href=\"{other.url}/console/\"]') !== null"
        )
    finally:
        silent.process.start()
    await asyncio.to_thread(eventually, lambda: ok(call(silent, "GET /readyz")))
    await page.until("!document.body.innerText.includes('cannot be reached')")
