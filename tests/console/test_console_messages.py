"""Records in a browser: other people's text, whatever it holds, and one of the reader's own."""

import asyncio
import base64
import json

import pytest

from tests.support.clusters.live_cluster import call, create_topic, ok

pytestmark = [pytest.mark.integration, pytest.mark.long]

BINARY = "application/vnd.kafka.binary.v2+json"
HOSTILE = {
    "<script>window.harmed = 1</script>": "<script>window.harmed = 1</script>",
    "<img src=x onerror='window.harmed=1'>": "<img src=x onerror='window.harmed=1'>",
    "${harmed} javascript:harmed()": "${harmed} javascript:harmed()",
    "a\u202egpj.exe": "a⟨202E⟩gpj.exe",
    "\u2066hidden\u200b": "⟨2066⟩hidden⟨200B⟩",
    "bell\u0007": "bell⟨0007⟩",
    "\u001b[31mred": "⟨001B⟩[31mred",
    "two\nlines": "two⟨000A⟩lines",
    '{"__proto__":{"x":1}}': '{"__proto__":{"x":1}}',
}
"""What is stored, and how it is shown."""
CELLS = "[...document.querySelectorAll('.table tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))"


def encoded(text):
    return base64.b64encode(text.encode()).decode()


def write(node, topic, records, partition=0):
    ok(
        call(
            node,
            f"POST /topics/{topic}/partitions/{partition}",
            {"records": records},
            content_type=BINARY,
        )
    )


@pytest.fixture
def made(cluster, request):
    """A topic of this test's own, with a node to ask."""

    async def make(records=(), partitions=1):
        node, topic = cluster.nodes[0], request.node.name.replace("test_", "")
        await asyncio.to_thread(create_topic, node, topic, partitions=partitions)
        if records:
            await asyncio.to_thread(write, node, topic, list(records))
        return node, topic

    return make


async def messages(browser, node, topic, query="", **look):
    return await browser.open(f"{node.url}/console/#/messages/{topic}{query}", **look)


async def test_hostile_records_are_text_and_nothing_in_them_hides(browser, made):
    records = [
        {"key": encoded(t), "value": encoded(t), "headers": [{"key": t, "value": encoded(t)}]}
        for t in HOSTILE
    ]
    node, topic = await made(records)
    page = await messages(browser, node, topic, "?partition=0&from=earliest")
    await page.until(f"document.querySelectorAll('tbody tr').length === {len(HOSTILE)}")
    assert [(row[3], row[4]) for row in await page.run(CELLS)] == [
        (f"{s} {'JSON' if s.startswith('{') else 'text'}", s) for s in HOSTILE.values()
    ]
    for at, shown in enumerate(HOSTILE.values()):
        await page.click(".link", str(at))
        await page.until(
            f"document.querySelector('.record h2')?.textContent.startsWith('Offset {at} ')"
        )
        assert (
            await page.run("document.querySelector('.header').textContent") == f"{shown}: {shown}"
        )
        await page.click(".record button:not(:disabled)", "text")
        assert "\u202e" not in await page.run("document.body.textContent")
    assert await page.run("typeof window.harmed") == "undefined"
    assert (
        await page.run("document.querySelectorAll('main script, main img, main [onerror]').length")
        == 0
    )
    assert not page.faults
    assert {url.startswith(node.url) for _, url in page.requests} == {True}


async def test_a_value_is_shown_as_json_text_and_bytes(browser, made):
    number = "123456789012345678901234567890"
    value = f'{{"n":{number},"list":[1,[],{{}}],"twice":1,"twice":2}}'
    binary = base64.b64encode(b"\x00\xff\x10").decode()
    node, topic = await made([{"value": encoded(value)}, {"value": binary}, {"key": binary}])
    page = await messages(browser, node, topic, "?partition=0&from=earliest")
    await page.click(".link", "0")
    shown = "document.querySelector('.record pre')?.textContent"
    # All digits, and both twins: it is the text that is laid out, not what a parser made of it.
    await page.until(
        f"{shown}.includes('\"n\": {number},\\n') && {shown}.match(/twice/g).length === 2"
    )
    for mode, part in (("text", value), ("hex", "7b 22 6e 22"), ("base64", encoded(value))):
        await page.click(".record [role=group] button", mode)
        await page.until(f"{shown}.includes({json.dumps(part)})")
    await page.click(".link", "1")
    await page.until(f"{shown} === '000000  00 ff 10' + ' '.repeat(41) + '···'")
    await page.click(".link", "2")
    await page.until_shown("none: a tombstone")
    assert not page.faults


async def test_records_are_asked_for_by_offset_and_by_time(browser, made):
    times = (1_700_000_000_000, 1_700_000_060_000, 1_700_000_120_000)
    node, topic = await made([{"value": encoded(f"v{t}"), "timestamp": t} for t in times])
    page = await messages(browser, node, topic, "?partition=0")
    await page.until("document.querySelectorAll('tbody tr').length === 3")
    await page.choose(".ask label:nth-of-type(2) select", "offset")
    await page.fill(".ask input:not([type=number])", "2")
    await page.click(".ask button", "Read")
    await page.until("document.querySelectorAll('tbody tr').length === 1")
    assert "from=offset" in await page.run("location.hash")
    assert (await page.run(CELLS))[0][4] == f"v{times[2]}"
    by_time = await messages(browser, node, topic, "?partition=0&from=time&at=2023-11-14T22:14:20Z")
    await by_time.until("document.querySelectorAll('tbody tr').length === 2")
    assert [row[4] for row in await by_time.run(CELLS)] == [f"v{t}" for t in times[1:]]
    wrong = await messages(browser, node, topic, "?partition=0&from=offset&at=99")
    await wrong.until_shown("offset 99 of")
    nonsense = await messages(browser, node, topic, "?partition=0&from=time&at=never&count=x")
    await nonsense.until("document.querySelectorAll('tbody tr').length === 3")
    assert not [*page.faults, *by_time.faults, *wrong.faults, *nonsense.faults]


async def test_what_is_typed_as_soon_as_the_form_is_shown_stays(browser, made):
    node, topic = await made([{"value": encoded(f"v{n}")} for n in range(3)])
    page = await browser.open(f"{node.url}/console/#/messages")
    await page.until_shown(topic)
    # Typed in the turn in which the field appears. A person can be that fast on a busy machine.
    await page.run(
        "new MutationObserver((_, observer) => {"
        " const field = document.querySelector('input[aria-describedby]'); if (!field) return;"
        " observer.disconnect(); field.value = 'offset = 1';"
        " field.dispatchEvent(new Event('input', { bubbles: true })); })"
        ".observe(document.body, { childList: true, subtree: true })"
    )
    await page.click("td a", topic)
    await page.until("document.querySelectorAll('tbody tr').length === 3")
    await page.click(".ask button", "Read")
    await page.until("document.querySelectorAll('tbody tr').length === 1")
    assert not page.faults


async def test_a_record_is_written_once_and_those_who_follow_see_it(browser, made):
    node, topic = await made(partitions=2)
    follower = await messages(browser, node, topic, "?from=live", width=390)
    await follower.until_shown("Following: 0 records received")
    page = await messages(browser, node, topic)
    await page.until_shown("No records match")
    await page.click("details.action > summary", "Write a record")
    await page.choose("details.action select", "1")
    await page.fill("details.action input", "u1")
    await page.fill("details.action label:nth-of-type(4) textarea", '{"n": 1')
    await page.until_shown("This is not JSON yet")
    assert await page.run("document.querySelector('details.action form button').disabled")
    await page.fill("details.action label:nth-of-type(4) textarea", '{"n": 1}')
    await page.fill("details.action label:nth-of-type(5) textarea", "trace: über:all")
    await page.click("details.action form button")
    await page.until_shown("written to partition 1 at offset 0")
    await page.until("document.querySelectorAll('tbody tr').length === 1")
    await follower.until_shown("Following: 1 record received")
    (row,) = await follower.run(CELLS)
    assert (row[:2], row[3:]) == (["1", "0"], ['"u1" JSON', '{"n":1}', "1"])
    stored = ok(
        await asyncio.to_thread(
            call, node, f"GET /topics/{topic}/partitions/1/records", headers={"Accept": BINARY}
        )
    )
    assert [(r["key"], r["value"], r["headers"]) for r in stored] == [
        (encoded('"u1"'), encoded('{"n":1}'), [{"key": "trace", "value": encoded("über:all")}])
    ]
    assert await follower.run("document.documentElement.scrollWidth") <= 390
    assert not [*page.faults, *follower.faults]


async def test_both_forms_of_a_key_are_offered_and_told_apart(browser, made):
    node, topic = await made([{"key": base64.b64encode(b"\xff").decode(), "value": encoded("0")}])
    page = await messages(browser, node, topic, "?partition=0&from=earliest")
    await page.click("details.action > summary", "Write a record")
    await page.fill("details.action input", "u1")
    for form, stored, offset in (("text", "u1", 1), ("JSON", '"u1"', 2)):
        await page.choose("details.action .beside select", form)
        await page.until_shown(f"The key is stored as {stored}.")
        await page.fill("details.action label:nth-of-type(4) textarea", str(offset))
        await page.click("details.action form button")
        await page.until_shown(f"written to partition 0 at offset {offset}")
    await page.fill("details.action input", "null")
    await page.until_shown("In JSON, null means that the record has no key.")
    await page.fill("details.action input", "")
    await page.until("document.querySelectorAll('tbody tr').length === 3")
    shown = [row[3] for row in await page.run(CELLS)]
    assert shown[0].endswith(" bytes")
    assert shown[1:] == ["u1 text", '"u1" JSON']
    records = ok(
        await asyncio.to_thread(
            call, node, f"GET /topics/{topic}/partitions/0/records", headers={"Accept": BINARY}
        )
    )
    assert [r["key"] for r in records[1:]] == [encoded("u1"), encoded('"u1"')]
    for offset, told in (("0", "bytes, 1 B"), ("1", "text, 2 B"), ("2", "JSON, 4 B")):
        await page.click(".link", offset)
        await page.until_shown(f"Offset {offset} of partition 0")
        assert await page.run("document.querySelector('.record h3').textContent") == f"Key {told}"
    assert not page.faults


async def test_a_flood_leaves_the_last_records_and_the_count_of_all(browser, made):
    node, topic = await made()
    page = await messages(browser, node, topic, "?partition=0&from=live")
    await page.until_shown("Following: 0 records received")
    for first in range(0, 2000, 500):
        records = [{"value": encoded(str(at))} for at in range(first, first + 500)]
        await asyncio.to_thread(write, node, topic, records)
    await page.until_shown("2,000 records received, the last 200 are shown")
    assert (await page.run(CELLS))[0][4] == "1999"
    assert not page.faults


async def test_what_is_shown_can_be_taken_home(browser, made):
    node, topic = await made([{"key": encoded("k"), "value": encoded("<b>bytes</b>")}])
    page = await messages(browser, node, topic, "?partition=0")
    await page.click("button", "Download as NDJSON")
    await page.click(".link", "0")
    await page.click("button", "Download the value")
    names = {f"{topic}.ndjson", f"{topic}-0-0"}
    folder = browser.downloads
    while not all((folder / name).is_file() for name in names):
        await asyncio.sleep(0.05)
    assert (folder / f"{topic}-0-0").read_bytes() == b"<b>bytes</b>"
    line = json.loads((folder / f"{topic}.ndjson").read_text(encoding="utf-8"))
    assert (line["key"], line["value"]) == (encoded("k"), encoded("<b>bytes</b>"))
    assert not page.faults


async def test_the_shown_command_reads_the_same_records(browser, made):
    node, topic = await made([{"value": encoded('"it\'s"')}])
    page = await messages(browser, node, topic, "?partition=0&from=earliest&count=1")
    command = await page.until("document.querySelector('.curl pre')?.textContent")
    done = await asyncio.create_subprocess_shell(command, stdout=asyncio.subprocess.PIPE)
    told, _ = await done.communicate()
    assert json.loads(told)["value"] == "it's"


async def test_a_key_is_stored_as_the_same_key_in_json_or_as_text(browser, made):
    node, topic = await made(partitions=3)
    page = await messages(browser, node, topic)
    await page.until_shown("No records match")
    await page.click("details.action > summary", "Write a record")
    form = "details.action"
    texts = ("u1", '"u1"', "5", "5.0", "1.10", "true", '{"b": 1, "a": [1, 2]}', '"\\u00fc"', "ü x")
    cases = [
        (text, key, value)
        for text in texts
        for key in ("JSON", "text")
        for value in ("JSON", "text")
    ]
    for at, (text, key_kind, value_kind) in enumerate(cases):
        await page.choose(f"{form} .beside select", key_kind)
        await page.choose(f"{form} > form > label:nth-of-type(2) select", value_kind)
        await page.fill(f"{form} input", text)
        await page.fill(f"{form} > form > label:nth-of-type(4) textarea", f"{at}")
        await page.click(f"{form} form button", "Write")
        await page.until(
            "document.querySelector('.action .buttons [role=status]').textContent"
            f".startsWith('written to partition') && {at + 1} === [...document.querySelectorAll("
            "'.table tbody tr')].length"
        )

    def written(headers):
        rows = []
        for partition in range(3):
            rows += ok(
                call(node, f"GET /topics/{topic}/partitions/{partition}/records", headers=headers)
            )
        return rows

    stored = await asyncio.to_thread(written, {"Accept": BINARY})
    by_value = {base64.b64decode(row["value"]).decode(): row for row in stored}
    assert len(by_value) == len(cases)

    def by_http(text, kind):
        """The same key from another client."""
        body = {"records": [{"key": text, "value": "x"}]}
        type_ = f"application/vnd.kafka.{kind.lower()}.v2+json"
        raw = json.dumps(body).encode()
        if kind == "JSON":
            try:
                json.loads(text)
                raw = b'{"records":[{"key":%s,"value":"x"}]}' % text.encode()
            except ValueError:
                pass
        (receipt,) = ok(call(node, f"POST /topics/{topic}", raw, content_type=type_))["offsets"]
        return ok(
            call(
                node,
                f"GET /topics/{topic}/partitions/{receipt['partition']}/records",
                headers={"Accept": BINARY},
                offset=receipt["offset"],
            )
        )[0]

    for at, (text, key_kind, _) in enumerate(cases):
        same = await asyncio.to_thread(by_http, text, key_kind)
        mine = by_value[str(at)]
        assert (mine["key"], mine["partition"]) == (same["key"], same["partition"]), (
            text,
            key_kind,
        )
    assert not page.faults


async def test_a_telephone_shows_every_cell_of_every_record(browser, made):
    wide = "wide " * 60
    node, topic = await made(
        [
            {"key": encoded("user-1"), "value": encoded('{"item":"tea"}')},
            {"key": encoded(wide), "value": encoded(wide)},
            {"value": base64.b64encode(bytes(range(64))).decode()},
            {"key": encoded("k")},
        ]
    )
    page = await messages(browser, node, topic, "?from=earliest", width=390)
    await page.until("document.querySelectorAll('tbody tr').length === 4")
    boxes = await page.run(
        "[...document.querySelectorAll('.table tbody td')].map((cell) => {"
        " const { left, right, width, height } = cell.getBoundingClientRect();"
        " return [cell.dataset.head, left, right, width, height, cell.scrollWidth - cell.clientWidth]; })"
    )
    assert len(boxes) == 4 * 6
    for head, left, right, width, height, beyond in boxes:
        assert left >= 0, head
        assert right <= 390, head
        assert min(width, height) > 0, head
        assert beyond <= 0, head
    assert not page.faults
