"""What the page of messages shows, held against what the API has: each question to topics of any size and content."""

import asyncio
import base64
import heapq
import json
from datetime import UTC, datetime
from operator import itemgetter

import pytest

from tests.support.clusters.live_cluster import BASE_TIMESTAMP_MS, call, create_topic, ok

pytestmark = [pytest.mark.integration, pytest.mark.long]

BINARY = "application/vnd.kafka.binary.v2+json"
EACH = 40
"""Records of a partition that is not empty."""
CELLS = "[...document.querySelectorAll('.table tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))"
QUESTIONS = {
    "from=latest&count=7": "last 7",
    "from=latest&count=1000": "last 1000",
    "from=earliest&count=7": "first 7",
    "from=earliest&count=1000": "first 1000",
    "from=time&at={time}&count=9": "first 9 from the time",
    "from=latest&count=5&filter=value.n %3C 20": "last 5 that pass",
    "from=earliest&count=5&filter=value.n %3E= 20": "first 5 that pass",
    "from=time&at={time}&count=5&filter=value.n %3E= 35": "first 5 from the time that pass",
}
MIDDLE_MS = BASE_TIMESTAMP_MS + 1000 * (EACH // 2)


def encoded(text):
    return base64.b64encode(text.encode()).decode()


def of_partition(partition):
    """Records of a partition: every third one but the first is empty; times go round all partitions."""
    if partition % 3 == 2:
        return []
    return [
        {"value": encoded(f'{{"n":{n}}}'), "timestamp": BASE_TIMESTAMP_MS + 1000 * n + partition}
        for n in range(EACH)
    ]


def expected(count, question):
    """(partition, offset) in the order in which the page shows them."""
    by_partition = [
        [(row["timestamp"], partition, n) for n, row in enumerate(of_partition(partition))]
        for partition in range(count)
    ]
    if "time=" in question or "from=time" in question:
        by_partition = [[row for row in rows if row[0] >= MIDDLE_MS] for rows in by_partition]
    if "%3C 20" in question:
        by_partition = [[row for row in rows if row[2] < 20] for rows in by_partition]
    for least in (20, 35):
        if f"%3E= {least}" in question:
            by_partition = [[row for row in rows if row[2] >= least] for rows in by_partition]
    most = int(question.split("count=")[1].split("&")[0])
    rows = list(heapq.merge(*by_partition))
    if "from=latest" in question:
        rows.reverse()
    return [[str(partition), str(offset)] for _, partition, offset in rows[:most]]


@pytest.fixture(scope="module", params=[1, 3, 30])
def topic(cluster, request):
    """A topic with so many partitions, of which some are empty, with leaders on all nodes."""
    node, name = cluster.nodes[0], f"of-{request.param}"
    create_topic(node, name, partitions=request.param)
    for partition in range(request.param):
        if rows := of_partition(partition):
            ok(
                call(
                    node,
                    f"POST /topics/{name}/partitions/{partition}",
                    {"records": rows},
                    content_type=BINARY,
                )
            )
    return node, name, request.param


@pytest.mark.parametrize("question", QUESTIONS, ids=QUESTIONS.values())
async def test_a_question_finds_the_records_of_all_partitions(browser, topic, question):
    node, name, count = topic
    time = datetime.fromtimestamp(MIDDLE_MS / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    query = question.format(time=time)
    page = await browser.open(f"{node.url}/console/#/messages/{name}?{query}")
    wanted = expected(count, question)
    shown = f"document.querySelectorAll('tbody tr').length === {min(50, len(wanted))}"
    await page.until(f"{shown} && document.body.innerText.includes(' read in ')")
    found = [row[:2] for row in await page.run(CELLS)]
    while len(found) < len(wanted):
        await page.click(".pager button", "Next")
        await page.until(
            f"parseInt(document.querySelector('.pager span').textContent) === {len(found) + 1}"
        )
        found += [row[:2] for row in await page.run(CELLS)]
    assert found == wanted
    assert not page.faults


async def test_the_shown_commands_have_the_records_of_every_question(browser, topic):
    node, name, count = topic
    for question in ("from=earliest&count=40", "from=latest&count=40", "from=latest&partition=0"):
        page = await browser.open(f"{node.url}/console/#/messages/{name}?{question}")
        commands = await page.until("document.querySelector('.curl pre')?.textContent")
        done = await asyncio.create_subprocess_shell(commands, stdout=asyncio.subprocess.PIPE)
        told, _ = await done.communicate()
        rows = [json.loads(line) for line in told.splitlines()]
        partitions = range(1 if "partition=0" in question else count)
        assert sorted(map(itemgetter("partition", "offset"), rows)) == [
            (partition, n) for partition in partitions for n in range(len(of_partition(partition)))
        ]


async def test_large_values_of_one_partition_leave_the_last_ones_of_all(browser, cluster):
    node, name = cluster.nodes[0], "large"
    await asyncio.to_thread(create_topic, node, name, partitions=3)

    def fill():
        for partition, size in ((0, 300_000), (1, 10)):
            for _ in range(30):
                body = {"records": [{"value": encoded("x" * size)}]}
                path = f"POST /topics/{name}/partitions/{partition}"
                ok(call(node, path, body, content_type=BINARY))

    await asyncio.to_thread(fill)
    page = await browser.open(f"{node.url}/console/#/messages/{name}?from=latest&count=100")
    await page.until_shown("Not all records were read")
    await page.until("document.querySelectorAll('tbody tr').length > 30")
    found = [(row[0], int(row[1])) for row in await page.run(CELLS)]
    assert [offset for partition, offset in found if partition == "1"] == list(range(30))[::-1]
    large = [offset for partition, offset in found if partition == "0"]
    assert large == list(range(30))[::-1][: len(large)]
    assert large
    assert not page.faults


async def test_a_partition_that_cannot_be_read_is_named_and_the_others_are_shown(browser, topic):
    node, name, _ = topic
    page = await browser.open(f"{node.url}/console/#/messages/{name}?from=earliest&count=1000")
    await page.until("document.querySelectorAll('tbody tr').length > 0")
    answer = await page.run(
        "import('./reading.js').then(({ readRecords }) => readRecords("
        f"{json.dumps(name)}, [0, 99], {{ from: 'earliest', count: 5 }}, {{ test: null }}))"
    )
    assert [one["partition"] for one in answer["missing"]] == [99]
    assert [record["offset"] for record in answer["records"]] == [0, 1, 2, 3, 4]
