"""The console where there is much of everything, or where hardly anything is left of the cluster."""

import asyncio
import base64

import pytest

from tests.support.clusters.live_cluster import call, create_topic, ok, running_cluster
from tests.support.fakes.listed import committed, open_part
from tests.support.fakes.ports import FakeNode
from tests.support.http.api_server import serving
from tests.support.http.console_forms import open_form

pytestmark = [pytest.mark.integration, pytest.mark.long]

BINARY = "application/vnd.kafka.binary.v2+json"
FRAMES = (
    "window.painted = 0;"
    " (function paint() { window.painted++; requestAnimationFrame(paint); })(); true"
)


ANSWERS = (
    "performance.getEntriesByType('resource').filter((e) => !/\\/console\\//.test(e.name))"
    ".map((e) => [e.name, e.encodedBodySize])"
)
ANSWER_BYTES_MAX = 64 << 10
"""Of one answer; a page is given a handful of them."""
VIEW_BYTES_MAX = 256 << 10
ELEMENTS_MAX = 2_000
"""Of a page with 50 rows."""
WIDE = 10_000
OPEN = 5_000


@pytest.fixture
async def large():
    """10,001 topics with 100,000 partitions, and 10,000 of these are one topic's."""
    node = FakeNode()
    for number in range(10_000):
        node.add_topic(f"topic-{number:05}", 9)
    node.add_topic("wide", WIDE)
    async with serving(node) as api:
        yield api


async def check_bounds(page):
    """What was asked for, and what is shown, is little."""
    sizes = dict(await page.run(ANSWERS))
    assert max(sizes.values()) < ANSWER_BYTES_MAX, sizes
    assert sum(sizes.values()) < VIEW_BYTES_MAX, sizes
    assert (
        await page.run(
            "Math.max(0, ...[...document.querySelectorAll('tbody')].map((e) => e.rows.length))"
        )
        <= 50
    )
    assert await page.run("document.querySelectorAll('*').length") < ELEMENTS_MAX
    assert not page.faults


async def test_ten_thousand_topics_are_shown_a_page_at_a_time(browser, large):
    for place in ("#/topics", "#/messages"):
        page = await browser.open(f"{large.base_url}/console/{place}")
        await page.until_shown("10,001 rows")
        await page.until("document.querySelectorAll('[aria-label=Topics] tbody tr').length === 50")
        await page.click("nav.pager button", "Next")
        await page.until_shown("51\u2013100 of 10,001")
        await page.until("document.querySelector('tbody a').textContent === 'topic-00050'")
        await page.fill("input[type=search]", "PIC-09999")
        await page.until_shown("1 of 10,001 rows")
        await page.until("document.querySelector('tbody a').textContent === 'topic-09999'")
        # What is looked at is in the address, and so can be sent to somebody else.
        assert await page.run("location.hash") == f"{place}?contains=PIC-09999"
        await check_bounds(page)
        sent = await browser.open(
            f"{large.base_url}/console/{place}?sort=partitions&order=desc&skip=0"
        )
        await sent.until("document.querySelector('tbody a')?.textContent === 'wide'")
        assert await sent.run("document.querySelector('th[aria-sort]').ariaSort") == "descending"
        gone = await browser.open(f"{large.base_url}/console/{place}?skip=99999")
        await gone.until_shown("10,001\u201310,001 of 10,001")
        assert not [*sent.faults, *gone.faults]


async def test_a_topic_of_ten_thousand_partitions_is_shown_a_page_at_a_time(browser, large):
    large.node.set_partition("wide", 7, leader=None)
    page = await browser.open(f"{large.base_url}/console/#/topics/wide")
    await page.until_shown("1\u201350 of 10,000")
    await page.until_shown("1 offline")
    await page.click("button.sort", "Leader")
    await page.until("document.querySelector('tbody a').textContent === '7'")
    await page.run("location.hash = '#/topics/wide?skip=9950'")
    await page.until("document.querySelector('tbody a').textContent === '9950'")
    await check_bounds(page)
    page = await browser.open(f"{large.base_url}/console/#/messages/wide")
    await page.until("document.querySelector('.ask input[type=number]')?.max === '9999'")
    await check_bounds(page)


async def test_every_page_of_a_large_cluster_is_small(browser, large):
    for number in range(WIDE):
        large.node.set_partition("wide", number, leader=None)
    for place, shown in (
        ("#/", "The worst 100 of"), ("#/nodes", "Address"), ("#/groups", "No groups yet"),
        ("#/moves", "No move is in progress"), ("#/transactions", "No transaction is open"),
    ):  # fmt: skip
        page = await browser.open(f"{large.base_url}/console/{place}")
        await page.until_shown(shown)
        await check_bounds(page)
    page = await browser.open(f"{large.base_url}/console/#/")
    await page.until_shown("100,000")
    await page.until_shown("10,000 partitions offline")


@pytest.fixture
async def busy():
    """10,001 groups, of which one reads 10,000 partitions; 5,000 open transactions, of which one has 1,000 of them."""
    node = FakeNode()
    node.add_topic("wide", WIDE)
    for number in range(WIDE):
        node.groups.put(f"group-{number:05}", [committed("wide", number)])
        node.groups.put("reads-all", [committed("wide", number)])
    for member in range(100):
        node.groups.join("reads-all", f"member-{member:03}", ["wide"], None)
    node.transactions.open = [
        *(open_part(number, "wide", number) for number in range(OPEN - 1)),
        *(open_part(OPEN, "wide", number) for number in range(1_000)),
    ]
    async with serving(node) as api:
        yield api


async def test_ten_thousand_groups_are_shown_a_page_at_a_time(browser, busy):
    page = await browser.open(f"{busy.base_url}/console/#/groups")
    await page.until_shown("1\u201350 of 10,001")
    await page.click("nav.pager button", "Next")
    await page.until("document.querySelector('tbody a').textContent === 'group-00050'")
    await page.click("button.sort", "Members")
    await page.click("button.sort", "Members")
    await page.until("document.querySelector('tbody a').textContent === 'reads-all'")
    assert await page.run("location.hash") == "#/groups?sort=members&order=desc"
    await page.fill("input[type=search]", "OUP-0999")
    await page.until_shown("10 rows")
    await check_bounds(page)


async def test_a_group_that_reads_ten_thousand_partitions_is_shown_a_page_at_a_time(browser, busy):
    await busy.post("/topics/wide/partitions/7777", {"records": [{"value": 1}]})
    page = await browser.open(f"{busy.base_url}/console/#/groups/reads-all")
    await page.until_shown("1\u201350 of 10,000")
    await page.until_shown("1\u201350 of 100")
    await page.until_shown("and 80 more")
    await page.click("button.sort", "Lag")
    await page.click("button.sort", "Lag")
    await page.until("document.querySelector('tbody').rows[0].cells[1].textContent === '7777'")
    # Each table has its own page, and both are in the address.
    await page.run(
        "document.querySelectorAll('nav.pager')[1].querySelectorAll('button')[1].click()"
    )
    await page.until_shown("51\u2013100 of 100")
    await page.until_shown("1\u201350 of 10,000")
    assert await page.run("location.hash") == (
        "#/groups/reads-all?sort=lag&order=desc&members.skip=50"
    )
    await check_bounds(page)


async def test_a_reset_of_ten_thousand_partitions_is_shown_a_page_at_a_time(browser, busy):
    page = await browser.open(f"{busy.base_url}/console/#/groups/group-00007")
    form = await open_form(page, "Reset offsets")
    await page.click(f"{form} form button", "Preview")
    await page.until_shown("1\u201350 of 10,000")
    cells = f"[...document.querySelector('{form} tbody').rows[7].cells].map((c) => c.innerText)"
    assert await page.run(cells) == ["7", "0", "0", "stays"]
    await page.click(f"{form} nav.pager button", "Next")
    await page.until_shown("51\u2013100 of 10,000")
    # Who leafs through it has not sent the form.
    assert {method for method, _ in page.requests} == {"GET"}
    await check_bounds(page)


async def test_five_thousand_open_transactions_are_shown_a_page_at_a_time(browser, busy):
    page = await browser.open(f"{busy.base_url}/console/#/transactions")
    await page.until_shown("1\u201350 of 5,000")
    await page.click("button.sort", "Blocks")
    await page.click("button.sort", "Blocks")
    await page.until_shown("and 995 more")
    await check_bounds(page)
    page = await browser.open(f"{busy.base_url}/console/#/")
    await page.until_shown("50 or more transactions past their timeout")
    await page.until("document.querySelector('dl.facts').innerText.includes('5,000')")
    await page.until("document.querySelector('dl.facts').innerText.includes('10,001')")
    await check_bounds(page)


async def test_ten_thousand_moves_are_shown_a_page_at_a_time(browser, busy):
    for broker_id in (4, 5, 6):
        busy.node.add_broker(broker_id, is_fenced=False)
    targets = [
        {"topic": "wide", "partition": n, "replicas": [1, 2, 4 + n % 3]} for n in range(WIDE)
    ]
    assert (await busy.post("/reassignments", {"partitions": targets})).status == 200
    page = await browser.open(f"{busy.base_url}/console/#/moves")
    await page.until_shown("1\u201350 of 10,000")
    await page.until_shown("node 4: not known")
    await page.fill("input[type=search]", "narrow")
    await page.until_shown("No move of such a topic is in progress")
    await check_bounds(page)


async def test_a_flood_that_is_followed_leaves_the_page_in_the_readers_hands(browser, cluster):
    node = cluster.nodes[0]
    await asyncio.to_thread(create_topic, node, "flood", partitions=1)
    value = base64.b64encode(b"x" * 100).decode()
    body = {"records": [{"value": value}] * 5_000}

    def write() -> None:
        for _ in range(8):
            ok(call(node, "POST /topics/flood/partitions/0", body, content_type=BINARY))

    page = await browser.open(f"{node.url}/console/#/messages/flood?from=live")
    await page.until_shown("Following: 0 records received")
    await page.run(FRAMES)
    writing = asyncio.create_task(asyncio.to_thread(write))
    seen = []
    while not writing.done():
        # It answers, and paints, while they come.
        seen.append(await page.run("window.painted"))
        await asyncio.sleep(0.05)
    await writing
    await page.until_shown("40,000 records received, the last 200 are shown")
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
    await page.until_shown("No majority of the metadata quorum responds")
    for place, also in (
        ("#/topics", "known"), ("#/topics/known", "Leader"), ("#/nodes", "Address"),
        ("#/messages", "known"), ("#/groups", "Without a majority this cannot be read or changed"),
        ("#/transactions", "Without a majority this cannot"), ("#/moves", "Without a majority this cannot"),
        ("#/access", "Without a majority this cannot"), ("#/api", "Ids of live brokers"),
    ):  # fmt: skip
        lost = await browser.open(f"{node.url}/console/{place}")
        await lost.until_shown("This is the last state that this node knew")
        await lost.until_shown(also)
        assert not lost.faults
    assert not page.faults
