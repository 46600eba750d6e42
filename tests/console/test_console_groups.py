"""Groups, transactions, moves and the API's own page in a browser."""

import asyncio
import json
from urllib.parse import quote

import pytest

from tests.support.clusters.live_cluster import call, cluster_id, create_topic, ok, partition_state
from tests.support.http.console_forms import open_form, until_enabled

pytestmark = [pytest.mark.integration, pytest.mark.long]

EVIL = "<b>evil/.group"
ROWS = (
    "[...document.querySelectorAll('.table tbody')[{}].rows]"
    ".map((r) => [...r.cells].map((c) => c.textContent.trim()))"
)


@pytest.fixture
def node(cluster):
    return cluster.nodes[0]


def prepare(node, group, topic, *, records, committed):
    """A topic of two partitions with records in each, and a group that has read some of them."""
    create_topic(node, topic, partitions=2)
    for partition in (0, 1):
        body = {"records": [{"value": at} for at in range(records)]}
        ok(call(node, f"POST /topics/{topic}/partitions/{partition}", body))
    offsets = [
        {"topic": topic, "partition": p, "offset": committed, "metadata": "<i>note</i>"}
        for p in (0, 1)
    ]
    call(node, f"POST /groups/{quote(group, safe='')}/offsets", {"offsets": offsets})


def committed_of(node, group, topic):
    told = ok(call(node, f"GET /groups/{quote(group, safe='')}/offsets"))
    return [told["offsets"][topic][str(p)]["offset"] for p in (0, 1)]


async def test_a_groups_lag_is_told_whatever_it_is_called(browser, node):
    await asyncio.to_thread(prepare, node, EVIL, "lagged", records=5, committed=2)
    page = await browser.open(f"{node.url}/console/#/groups")
    await page.until(f"{ROWS.format(0)}.some((r) => r[0] === {json.dumps(EVIL)} && r[4] === '6')")
    await page.click("td a", EVIL)
    await page.until_shown("Committed offsets")
    await page.until(f"{ROWS.format(0)}.length === 2")
    for at, row in enumerate(await page.run(ROWS.format(0))):
        assert row[:5] == ["lagged", str(at), "2", "5", "3"]
        assert row[7] == "<i>note</i>"
    assert await page.run("document.querySelectorAll('main b b, main i').length") == 0
    assert not page.faults


async def test_a_reset_is_shown_before_it_is_done(browser, node):
    await asyncio.to_thread(prepare, node, "back", "replayed", records=5, committed=2)
    page = await browser.open(f"{node.url}/console/#/groups/back")
    form = await open_form(page, "Reset offsets")
    await page.choose(f"{form} label:nth-of-type(2) select", "offset")
    await until_enabled(page, form, is_on=False)
    await page.fill(f"{form} label:nth-of-type(3) input", "99")
    await page.click(f"{form} form button", "Preview")
    await page.until_shown("is above its end, 5")
    await page.fill(f"{form} label:nth-of-type(3) input", "5")
    await page.click(f"{form} form button", "Preview")
    await page.until_shown("nothing has changed yet")
    preview = (
        f"[...document.querySelector('{form} tbody').rows].map((r) => r.innerText.split('\\t'))"
    )
    assert await page.run(preview) == [[str(p), "2", "5", "skips 3 offsets"] for p in (0, 1)]
    assert await asyncio.to_thread(committed_of, node, "back", "replayed") == [2, 2]
    assert [method for method, _ in page.requests if method != "GET"] == []
    # Another wish is another preview.
    await page.choose(f"{form} label:nth-of-type(2) select", "earliest")
    await page.click(f"{form} form button", "Preview")
    await page.until(f"{preview}[0][3] === 'reads 2 offsets again'")
    await page.click(f"{form} form button", "Reset")
    await page.until_shown("done")
    assert await asyncio.to_thread(committed_of, node, "back", "replayed") == [0, 0]
    assert not page.faults


async def test_a_reset_of_a_group_with_members_is_refused_and_says_why(browser, node):
    await asyncio.to_thread(prepare, node, "busy", "followed", records=1, committed=0)
    joins = {"member_id": "<m1>", "member_epoch": 0, "topics": ["followed"], "owned": []}
    ok(await asyncio.to_thread(call, node, "POST /groups/busy/heartbeat", joins))
    page = await browser.open(f"{node.url}/console/#/groups/busy")
    await page.until(f"{ROWS.format(1)}[0]?.[0] === '<m1>'")
    form = await open_form(page, "Reset offsets")
    await page.until_shown("The group has 1 member. Stop them first")
    await page.click(f"{form} form button", "Preview")
    await page.click(f"{form} form button", "Reset")
    await page.until_shown("stop them before its offsets are reset")
    assert not page.faults


async def test_a_rest_consumer_is_named_and_ended(browser, node):
    await asyncio.to_thread(create_topic, node, "served", partitions=1)
    ok(await asyncio.to_thread(call, node, "POST /consumers/readers", {"name": "c1"}))
    where = "/consumers/readers/instances/c1"
    ok(await asyncio.to_thread(call, node, f"POST {where}/subscription", {"topics": ["served"]}))
    page = await browser.open(f"{node.url}/console/#/groups/readers")
    await page.until_shown("REST consumer")
    form = await open_form(page, "End the REST consumer c1")
    await page.fill(f"{form} input", "c1")
    await page.click(f"{form} form button", "End it")
    await page.until_shown("The group has no members now")
    gone = await asyncio.to_thread(call, node, f"GET {where}/records")
    assert gone.refusal == (404, 40403)
    assert not page.faults


async def test_an_open_transaction_says_what_it_holds_up_and_is_aborted(browser, node):
    await asyncio.to_thread(create_topic, node, "held-up", partitions=1)
    begins = {"transactional_id": "<script>", "timeout_ms": 600_000}
    begun = ok(await asyncio.to_thread(call, node, "POST /transactions:begin", begins))
    ok(
        await asyncio.to_thread(
            call,
            node,
            "POST /topics/held-up",
            {"records": [{"value": 1}]},
            headers={"Milena-Transaction": begun["transaction"]},
        )
    )
    page = await browser.open(f"{node.url}/console/#/transactions")
    await page.until(f"{ROWS.format(0)}[0]?.[0] === '<script>'")
    assert (await page.run(ROWS.format(0)))[0][6] == "held-up 0: 0 (1)"
    name = f"{begun['producer_id']}:{begun['producer_epoch']}"
    form = await open_form(page, f"Abort <script> {name}")
    await until_enabled(page, form, is_on=False)
    await page.fill(f"{form} input", name)
    await page.click(f"{form} form button", "Abort it")
    await page.until_shown("No transaction is open")
    assert not page.faults


async def test_a_move_is_shown_before_it_is_made(browser, node):
    await asyncio.to_thread(create_topic, node, "moved", partitions=1)
    before = (await asyncio.to_thread(partition_state, node, "moved"))["replicas"]
    after = before[::-1]
    page = await browser.open(f"{node.url}/console/#/moves")
    form = await open_form(page, "Move replicas")
    await page.choose(f"{form} select", "partitions")
    await page.fill(f"{form} label:nth-of-type(2) input", "moved")
    # Names that it may be are offered.
    await page.until(
        "[...document.querySelectorAll('datalist option')].some((e) => e.value === 'moved')"
    )
    await page.fill(f"{form} label:nth-of-type(3) input", "0")
    await page.fill(f"{form} label:nth-of-type(4) input", " ".join(str(one) for one in after))
    await page.click(f"{form} form button", "Preview")
    await page.until_shown("nothing moves yet")
    shown = await page.run(f"document.querySelector('{form} tbody').rows[0].innerText.split('\\t')")
    assert shown == ["moved", "0", *(" ".join(str(one) for one in ids) for ids in (before, after))]
    assert (await asyncio.to_thread(partition_state, node, "moved"))["replicas"] == before
    await page.click(f"{form} form button", "Move")
    await page.until_shown("1 partition moving")
    while (await asyncio.to_thread(partition_state, node, "moved"))["replicas"] != after:
        await asyncio.sleep(0.05)
    assert not page.faults


async def test_a_move_says_how_far_it_is_and_is_taken_back(browser, node):
    where = f"/v3/clusters/{cluster_id(node)}/topics"
    wanted = {"topic_name": "slow", "partitions_count": 1, "replication_factor": 2}
    ok(await asyncio.to_thread(call, node, f"POST {where}", wanted))
    # A fetch brings a batch, whatever the bound: the next ones wait.
    body = {"records": [{"value": "x" * 100_000}] * 10}
    for _ in range(8):
        ok(await asyncio.to_thread(call, node, "POST /topics/slow/partitions/0", body))
    before = (await asyncio.to_thread(partition_state, node, "slow"))["replicas"]
    (other,) = {1, 2, 3} - set(before)
    moved = {"topic": "slow", "partition": 0, "replicas": [before[0], other]}
    asked = {"partitions": [moved], "throttle_bytes_per_s": 1}
    ok(await asyncio.to_thread(call, node, "POST /reassignments", asked))
    page = await browser.open(f"{node.url}/console/#/moves")
    await page.until(f"{ROWS.format(0)}[0]?.[5].startsWith('node {other}: ')")
    row = (await page.run(ROWS.format(0)))[0]
    told = ok(await asyncio.to_thread(call, node, "GET /reassignments"))["reassignments"][0]
    ids = [" ".join(str(one) for one in told[name]) for name in ("replicas_before", "replicas")]
    assert row[:5] == ["slow", "0", told["state"].replace("_", " "), *ids]
    form = await open_form(page, "Cancel all moves")
    await page.fill(f"{form} input", "moves")
    await page.click(f"{form} form button", "Cancel them")
    await page.until_shown("No move is in progress")
    assert (await asyncio.to_thread(partition_state, node, "slow"))["replicas"] == before
    assert not page.faults


async def test_any_call_of_the_api_is_made_from_its_description(browser, node):
    await asyncio.to_thread(create_topic, node, "explored", partitions=1)
    page = await browser.open(f"{node.url}/console/#/api/produceToTopic")
    form = await open_form(page, "Send it")
    await until_enabled(page, form, is_on=False)
    await page.fill(f"{form} .parameter input", "explored")
    await page.fill(f"{form} textarea", '{"records":[{"value":"<b>é</b>"}]}')
    await page.until(
        "document.querySelector('.curl pre')?.textContent.includes('/topics/explored')"
    )
    command = await page.run("document.querySelector('.curl pre').textContent")
    await page.click(f"{form} form button", "Send")
    await page.until_shown('{"offsets":[{"partition":0,"offset":0,')
    done = await asyncio.create_subprocess_shell(command, stdout=asyncio.subprocess.PIPE)
    assert b'"offset":1' in (await done.communicate())[0]
    stored = ok(await asyncio.to_thread(call, node, "GET /topics/explored/partitions/0/records"))
    assert [record["value"] for record in stored] == ["<b>é</b>"] * 2
    lists = await browser.open(f"{node.url}/console/#/api/listTopics")
    await lists.click("form button", "Send")
    await lists.until_shown('"explored"')
    assert not [*page.faults, *lists.faults]


async def test_a_call_that_deletes_wants_the_word(browser, node):
    page = await browser.open(f"{node.url}/console/#/api/deleteGroup")
    form = await open_form(page, "Send it")
    await page.fill(f"{form} .parameter input", "nobody")
    await until_enabled(page, form, is_on=False)
    await page.fill(f"{form} label:last-of-type input:not(.parameter input)", "DELETE")
    await page.click(f"{form} form button", "Send")
    await page.until_shown('"error_code":40405')
    assert not page.faults
