"""Filters of messages in a browser: what they mean, what they are not, and that nothing of them is run."""

import asyncio
import base64
import json

import pytest

from tests.support.clusters.live_cluster import call, create_topic, ok

pytestmark = [pytest.mark.integration, pytest.mark.long]

BINARY = "application/vnd.kafka.binary.v2+json"


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


RECORD = {
    "partition": 3,
    "offset": 17,
    "timestamp": 1_700_000_000_000,
    "key": encoded("eu-1"),
    "value": encoded(
        '{"status":503,"ok":false,"user":{"name":"ann","tags":["a","b"]},"none":null,'
        '"a b":1,"__proto__":{"own":1}}'
    ),
    "headers": [
        {"key": "trace", "value": encoded("first")},
        {"key": "trace", "value": encoded("ab-cd")},
        {"key": "bin", "value": base64.b64encode(b"\xff").decode()},
        {"key": "empty", "value": None},
        {"key": "quoted", "value": encoded('"u1"')},
    ],
}
MEANINGS = {
    'key = "eu-1"': True,
    'key begins "eu" and not key ends "2"': True,
    "value.status >= 500": True,
    "value.status = 503.0": True,
    'value.status = "503"': False,
    'value.status > "5"': False,
    'value.user.name != "bob"': True,
    'value.user.tags contains "b"': True,
    'value.user.tags[1] = "b"': True,
    'value["a b"] = 1': True,
    'value contains "\\"status\\":503"': True,
    "value.ok = false or value.ok = 0": True,
    "value.none = null and value.none exists": True,
    "value.nothing exists": False,
    "value.nothing = null": False,
    "value.nothing != 1": True,
    "value.nothing < 1": False,
    'header.trace contains "ab"': True,
    'header.trace = "first"': False,
    "header.none exists": False,
    "header.empty = null": True,
    "header.bin exists": False,
    # A JSON string is its text.
    'header.quoted = "u1"': True,
    "partition = 3 and offset >= 17 and timestamp < 1.8e12": True,
    # "and" binds closer than "or".
    "partition = 3 or partition = 4 and offset = 0": True,
    "(partition = 3 or partition = 4) and offset = 0": False,
    "not not partition = 3": True,
    # What every object of the language has is no field of a record.
    "value.constructor exists": False,
    "value.toString exists": False,
    "value.user.__proto__ exists": False,
    "value.__proto__.own = 1": True,
    "value.user.tags.length = 2": True,
    "header.constructor exists": False,
    "key.x exists": False,
    "offset.constructor exists": False,
}
REFUSED = (
    "",
    "key",
    'key = "open',
    "key == 1",
    "key = eu",
    "key = 1 offset = 2",
    "(key = 1",
    "key = 1)",
    "record.key = 1",
    "constructor = 1",
    "__proto__.x = 1",
    "key = undefined",
    'key matches "(a+)+$"',
    "value.f() = 1",
    "value[0 = 1",
    "value[key] = 1",
    'value["\\u{1}"] = 1',
    "alert(1)",
    "value.x = `${alert(1)}`",
    "key = 1; fetch('/')",
    "not " * 40 + "key = 1",
    "(" * 400 + "key = 1" + ")" * 400,
    "key = 1" + " or key = 1" * 400,
    "key toString 1",
    "key __proto__ 1",
)


@pytest.fixture
async def page(browser, cluster):
    opened = await browser.open(f"{cluster.nodes[0].url}/console/")
    await opened.until_shown("Healthy")
    return opened


async def test_a_filter_means_what_the_grammar_says(page):
    script = (
        "import('./filter.js').then(({ filterOf }) =>"
        f" {json.dumps(list(MEANINGS))}.map((text) => filterOf(text)({json.dumps(RECORD)})))"
    )
    assert dict(zip(MEANINGS, await page.run(script), strict=True)) == MEANINGS


async def test_what_is_no_filter_is_refused_where_it_ceases_to_be_one(page):
    script = (
        "import('./filter.js').then(({ filterOf, FilterError }) =>"
        f" {json.dumps(REFUSED)}.map((text) => {{ try {{ filterOf(text); return 'taken'; }}"
        " catch (error) { return error instanceof FilterError && error.at >= 0"
        " && error.at <= text.length; } }))"
    )
    assert dict(zip(REFUSED, await page.run(script), strict=True)) == dict.fromkeys(REFUSED, True)
    assert not page.faults


async def test_only_what_passes_is_read_and_followed(browser, cluster):
    node = cluster.nodes[0]
    await asyncio.to_thread(create_topic, node, "filtered", partitions=1)

    def write(first: int) -> None:
        records = [{"value": encoded(json.dumps({"n": n}))} for n in range(first, first + 500)]
        ok(call(node, "POST /topics/filtered", {"records": records}, content_type=BINARY))

    await asyncio.to_thread(write, 0)
    where = f"{node.url}/console/#/messages/filtered"
    page = await browser.open(f"{where}?from=earliest&count=2")
    await page.until("document.querySelectorAll('tbody tr').length === 2")
    await page.fill("input[aria-describedby]", "value.n >= 490 and")
    await page.until_shown("Not yet: one of key,")
    assert await page.run("document.querySelector('.ask button').disabled")
    await page.fill("input[aria-describedby]", "value.n >= 490")
    await page.click(".ask button", "Read")
    await page.until_shown("492 records read")
    values = "[...document.querySelectorAll('tbody tr')].map((r) => JSON.parse(r.cells[4].textContent).n)"
    assert await page.run(values) == [490, 491]
    last = await browser.open(f"{where}?count=2&filter=value.n%20%3C%20100")
    await last.until(f"{values} + '' === '99,98'")
    live = await browser.open(f"{where}?from=live&filter=value.n%20%3E%20998")
    await live.until_shown("Following: 0 records received")
    await asyncio.to_thread(write, 500)
    await live.until_shown("500 records received")
    await live.until(f"{values} + '' === '999'")
    bad = await browser.open(f"{where}?filter=alert(1)")
    await bad.until_shown("This filter is not valid")
    assert not [*page.faults, *last.faults, *live.faults, *bad.faults]
