"""The console as a whole: what axe-core finds, a keyboard alone, sizes, and pictures for its document.

``MILENA_CONSOLE_PICTURES=docs/console`` puts the pictures there; they are looked at by eye.
"""

import asyncio
import os
import time
from pathlib import Path

import pytest

from tests.support.clusters.live_cluster import call, ok, running_cluster
from tests.support.http.console_cluster import fill

pytestmark = [pytest.mark.integration, pytest.mark.long]

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text(encoding="utf-8")
VIOLATIONS = (
    "axe.run(document, { resultTypes: ['violations'] }).then(({ violations }) => violations"
    ".map((v) => `${v.id}: ${v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160)).join(' | ')}`))"
)
SCRIPT_BYTES_MAX = 120_000
PICTURES = {
    "cluster": ("#/", 1280, False),
    "messages": ("#/messages/orders?count=8&filter=value.status%20%3E%3D%20500", 1280, False),
    "group": ("#/groups/billing", 390, True),
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("filled")) as cluster:
        yield fill(cluster.nodes[0])


def write_for_a_while(node) -> None:
    end = time.monotonic() + 130
    while (left := end - time.monotonic()) > 0:
        many = [{"value": {"status": 200, "order": n}} for n in range(20 + int(left * 7) % 300)]
        ok(call(node, "POST /topics/orders", {"records": many}))
        ok(call(node, "GET /topics/orders/partitions/2/records?offset=-20"))
        time.sleep(0.5)


async def opened(browser, filled, place, **look):
    page = await browser.open(f"{filled.node.url}/console/{place}", **look)
    await page.until("document.querySelector('h1') && !document.body.innerText.includes('Asking')")
    return page


async def test_axe_finds_nothing_on_any_page_in_either_theme_wide_or_narrow(browser, filled):
    found = {}
    for place in filled.places:
        page = await opened(browser, filled, place)
        await page.run("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
        await page.run(f"{AXE}; true")
        for width in (1280, 390):
            for is_dark in (False, True):
                await page.look(width=width, is_dark=is_dark)
                assert await page.run("document.documentElement.scrollWidth") <= width, place
                if wrong := await page.run(VIOLATIONS):
                    found[place, width, is_dark] = wrong
        assert not page.faults, place
    assert not found, "\n".join(f"{where}: {wrong}" for where, wrong in found.items())


async def test_every_page_is_reached_and_left_by_the_keyboard_alone(browser, filled):
    page = await opened(browser, filled, "#/topics/orders")
    reached = set()
    for _ in range(60):
        await page.press("Tab")
        told = await page.run(
            "(({ tagName, innerText, getAttribute: _ }) => `${tagName} ${innerText ?? ''}`)"
            "(document.activeElement)"
        )
        assert await page.run(
            "document.activeElement === document.body"
            " || getComputedStyle(document.activeElement).outlineStyle === 'solid'"
        ), told
        reached.add(told.strip())
    names = ("Cluster", "Nodes", "Topics", "Messages", "Groups", "Transactions", "Moves", "Access")
    assert {f"A {name}" for name in names} <= reached
    # Actions, charts' tables and the rows that scroll are on the way, too.
    assert any(told.startswith("SUMMARY") for told in reached)
    assert any("As a table" in told for told in reached)


async def test_scripts_are_small_and_the_first_paint_is_measured(browser, filled):
    page = await opened(browser, filled, "#/")
    sizes = await page.run(
        "performance.getEntriesByType('resource').filter((e) => e.name.endsWith('.js'))"
        ".map((e) => e.transferSize)"
    )
    paint = await page.run("performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
    print(f"{len(sizes)} scripts, {sum(sizes)} bytes; first contentful paint after {paint:.0f} ms")
    # With everybody's headers, which are as much again as some of the modules.
    assert 10_000 < sum(sizes) < SCRIPT_BYTES_MAX


async def test_pictures_are_made(browser, filled, tmp_path):
    folder = Path(os.environ.get("MILENA_CONSOLE_PICTURES", tmp_path))
    folder.mkdir(exist_ok=True)
    if folder != tmp_path:
        # A document's charts have something to show.
        await asyncio.to_thread(write_for_a_while, filled.node)
    for name, (place, width, is_dark) in PICTURES.items():
        page = await opened(browser, filled, place, width=width, is_dark=is_dark)
        await page.until("document.querySelector('tbody tr, svg') !== null")
        await page.picture(folder / f"{name}.png")
        assert (folder / f"{name}.png").stat().st_size > 10_000
        assert not page.faults
