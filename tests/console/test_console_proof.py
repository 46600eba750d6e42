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
PAINTS = 5
PICTURES = {
    "cluster": ("#/", 1280, False),
    "messages": ("#/messages/orders?count=8&filter=value.status%20%3E%3D%20500", 1280, False),
    "group": ("#/groups/billing", 390, True),
    "topic": ("#/topics/orders", 1280, True),
    "nodes": ("#/nodes", 1280, False),
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
    await page.until(
        "(document.querySelector('.curl pre') || document.body.innerText.includes('no such page'))"
        " && !document.body.innerText.includes('Loading')"
    )
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


WALK = """
{
  const at = document.activeElement;
  const isStop = (e) => e.matches(STOPS) && e.checkVisibility() && !e.closest('details:not([open]) > :not(summary)');
  const left = () => [...document.querySelectorAll(STOPS)].filter((e) => isStop(e) && !e.walked);
  if (at !== document.body) at.walked = true;
  const told = {
    what: `${at.tagName} ${(at.ariaLabel || at.innerText || at.name || '').slice(0, 60)}`,
    isSeen: at === document.body || getComputedStyle(at).outlineStyle === 'solid',
    isClosed: at.tagName === 'SUMMARY' && !at.parentElement.open,
    left: left().map((e) => e.outerHTML.slice(0, 120)),
  };
  return told;
}
""".replace(
    "STOPS",
    "'a[href], button:not(:disabled), input:not(:disabled), select, textarea, summary, [tabindex=\"0\"]'",
)
PRESSES_MAX = 600


async def walk(page) -> int:
    """Go on by Tab, and open by Enter what is closed, until everything was reached; how many times Tab was pressed."""
    await page.run("document.querySelector('.skip').focus()")
    for presses in range(PRESSES_MAX):
        told = await page.run(f"(() => {WALK})()")
        assert told["isSeen"], told["what"]
        if told["isClosed"]:
            await page.press("Enter")
        elif not told["left"]:
            return presses
        await page.press("Tab")
    raise AssertionError(f"never reached: {told['left'][:5]}; at last: {told['what']}")


async def test_everything_on_every_page_is_reached_by_the_keyboard_alone(browser, filled):
    walked = {}
    for place in filled.places:
        page = await opened(browser, filled, place)
        walked[place] = await walk(page)
        assert not page.faults, place
    print(walked)
    # The bar alone has eleven.
    assert min(walked.values()) > 11


async def test_a_record_that_is_closed_gives_the_focus_back(browser, filled):
    page = await opened(browser, filled, "#/messages/orders?count=8")
    focused = "document.activeElement.getAttribute('aria-label')"
    await page.until("document.querySelectorAll('[aria-label=Records] tbody tr').length === 8")
    for leave in ("Escape", "Enter"):
        await page.run("document.querySelectorAll('[aria-label=Records] td button')[3].focus()")
        opener = await page.run(focused)
        await page.press("Enter")
        await page.until("document.activeElement.matches('.record h2')")
        if leave == "Enter":
            await page.until(
                "document.activeElement.innerText === 'Close'"
                " || (document.activeElement.closest('.record')?.querySelectorAll('header button')[1].focus(), false)"
            )
        await page.press(leave)
        await page.until(f"document.querySelector('.record') === null && {focused} === {opener!r}")
    assert not page.faults


async def test_the_commands_of_every_page_run_in_a_shell(browser, filled):
    seen = {}
    for place in filled.places:
        page = await opened(browser, filled, place)
        shown = await page.run("document.querySelector('.curl pre')?.textContent ?? ''")
        # What a page of the API's description gives has names to be filled in; what follows a log never ends.
        commands = [c for c in shown.split("\n") if c and "-sN" not in c and "#/api/" not in place]
        seen[place] = len(commands)
        for command in commands:
            done = await asyncio.create_subprocess_exec(
                "sh", "-c", f"{command} -f", stdout=asyncio.subprocess.PIPE
            )
            out, _ = await done.communicate()
            assert done.returncode == 0, (place, command)
            assert out, (place, command)
    without = {place for place, count in seen.items() if not count}
    assert without == {"#/messages/visits?from=live", "#/api/fetchRecords", "#/nonsense"}


REST_S = 20
REQUESTS_A_SECOND_MAX = 2


async def test_a_console_at_rest_asks_for_little(browser, filled):
    page = await opened(browser, filled, "#/")
    await page.until_shown("Busiest partitions")
    before, cpu = len(page.requests), cpu_s(filled.node.process.pid)
    await asyncio.sleep(REST_S)
    count, took = len(page.requests) - before, cpu_s(filled.node.process.pid) - cpu
    sizes = await page.run(
        "performance.getEntriesByType('resource').filter((e) => !/\\/console\\//.test(e.name))"
        ".map((e) => e.transferSize)"
    )
    await page.call("Page.navigate", url="about:blank")
    cpu = cpu_s(filled.node.process.pid)
    await asyncio.sleep(REST_S)
    alone = cpu_s(filled.node.process.pid) - cpu
    print(
        f"{count / REST_S:.1f} requests a second, {max(sizes)} bytes at most;"
        f" {took / REST_S:.1%} of a core with it, {alone / REST_S:.1%} without"
    )
    assert 0 < count / REST_S < REQUESTS_A_SECOND_MAX
    assert max(sizes) < 64 << 10


def cpu_s(pid: int) -> float:
    """What a process has used of a core."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def test_scripts_are_small_and_the_first_paint_is_measured(browser, filled):
    page = await opened(browser, filled, "#/")
    sizes = await page.run(
        "performance.getEntriesByType('resource').filter((e) => e.name.endsWith('.js'))"
        ".map((e) => e.transferSize)"
    )
    paints = []
    for _ in range(PAINTS):
        again = await opened(browser, filled, "#/")
        told = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        paints.append(await again.run(told))
    print(
        f"{len(sizes)} scripts, {sum(sizes)} bytes; first contentful paint after"
        f" {min(paints):.0f} ms at best, {sorted(paints)[PAINTS // 2]:.0f} ms in the middle"
    )
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
        await page.until("!document.body.innerText.includes('Loading')")
        await page.picture(folder / f"{name}.png")
        assert (folder / f"{name}.png").stat().st_size > 10_000
        assert not page.faults
