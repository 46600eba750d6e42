"""Lines into a topic and out again, through the command line and three real nodes: every byte, whatever happens."""

import asyncio
import contextlib
import gzip
import json
import os
import random
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from milena.client import Client
from milena.errors import AnswerError, UnexpectedAnswerError, UnreadableOffsetError
from milena.reading.cursor import OnOutOfRange
from milena.records import LastN, StartAt, TimestampMs
from tests.support.clusters.live_cluster import (
    DEADLINE_S,
    call,
    create_topic,
    delete_topic,
    encoded,
    end_offset,
    eventually,
    in_background,
    leader_of,
    others,
    restart,
    running_cluster,
    wait_in_sync,
    wait_ready,
    write_batch,
)
from tests.support.http.http_server import serving

pytestmark = pytest.mark.integration

HOSTILE = [
    b"",
    b"\r",
    b"\xff\xfe\x00",
    b" ",
    b"\t\t",
    b"null",
    b'{"not": "closed',
    "zażółć £ 🦀".encode(),
    b"\xc3",
    b"\x85\xe2\x80\xa8\x0b\x0c\x1c",
    b"\x00",
    b"x" * 200_000,
]

ACCESS_LOG = Path(__file__).parents[1] / "data" / "access_log.gz"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    directory = tmp_path_factory.mktemp("produce-consume")
    with running_cluster(directory, retention_check_ms=200) as nodes:
        yield nodes


def command(node, *words):
    return [sys.executable, "-m", "milena", "--url", node.url, *words]


def milena(node, *words, given=b""):
    """Run one command to its end."""
    return subprocess.run(
        command(node, *words), input=given, capture_output=True, timeout=DEADLINE_S, check=False
    )


def done(result, code=0):
    assert result.returncode == code, (result.returncode, result.stdout[-500:], result.stderr)
    return result


@contextlib.contextmanager
def running(node, *words, **options) -> Iterator[subprocess.Popen]:
    process = subprocess.Popen(
        command(node, *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def hostile_lines(count, seed=1):
    """Lines of every kind that a text file may hold, none with a line feed."""
    chance = random.Random(seed)
    lines = [*HOSTILE]
    while len(lines) < count:
        kind = chance.randrange(4)
        size = chance.randrange(120)
        if kind == 0:
            line = chance.randbytes(size).replace(b"\n", b"\r")
        elif kind == 1:
            line = b"%d:" % len(lines) + b"v" * size
        else:
            line = chance.choice(HOSTILE[:-1])
        lines.append(line)
    return lines


# -- through and back ------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [b"\n", b""], ids=["ended", "open"])
def test_ten_thousand_lines_come_back_byte_for_byte(cluster, tmp_path, ending):
    one, two, three = cluster.nodes
    topic = create_topic(one, f"lines-{len(ending)}")
    text = b"\n".join([*hostile_lines(9_999), b"the end"]) + ending
    (tmp_path / "lines.txt").write_bytes(text)
    wrote = done(milena(two, "produce", topic, str(tmp_path / "lines.txt"), "--json"))
    summary = json.loads(wrote.stdout)
    assert (summary["lines"], summary["records"]) == (10_000, 10_000)
    assert summary["partitions"] == [
        {"partition": 0, "records": 10_000, "first_offset": 0, "last_offset": 9_999}
    ]
    assert done(milena(three, "consume", topic)).stdout == text.removesuffix(b"\n") + b"\n"


def test_lines_over_three_partitions_come_back_in_their_order(cluster, tmp_path):
    one, two, _ = cluster.nodes
    topic = create_topic(one, "spread", partitions=3)
    lines = [b"%06d " % n + line for n, line in enumerate(hostile_lines(10_000))]
    with gzip.open(tmp_path / "lines.gz", "wb") as file:
        file.write(b"\n".join(lines))
    wrote = milena(
        two, "produce", topic, str(tmp_path / "lines.gz"), "--batch-bytes", "4096", "--compression",
        "zstd", "--json",
    )  # fmt: skip
    summary = json.loads(done(wrote).stdout)
    assert [p["partition"] for p in summary["partitions"]] == [0, 1, 2]
    assert sum(p["records"] for p in summary["partitions"]) == 10_000
    parts = [
        done(milena(one, "consume", topic, "-p", str(p))).stdout.split(b"\n")[:-1] for p in range(3)
    ]
    for part in parts:
        assert part == sorted(part), "each partition in the order of the file"
    assert sorted(line for part in parts for line in part) == lines
    everything = done(milena(one, "consume", topic)).stdout.split(b"\n")[:-1]
    assert everything == [line for part in parts for line in part]


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_real_access_log_comes_back_byte_for_byte(cluster, partitions):
    one, two, three = cluster.nodes
    topic = create_topic(one, f"access-{partitions}", partitions=partitions)
    text = gzip.decompress(ACCESS_LOG.read_bytes())
    assert text.count(b"\n") == 10_000
    # By client address, as whoever cares for each visitor's order would.
    done(milena(two, "produce", topic, str(ACCESS_LOG), "--key-separator", " "))
    layout = ("--format", "key-value", "--key-separator", " ")
    back = done(milena(three, "consume", topic, *layout)).stdout
    if partitions == 1:
        assert back == text
    visitors = {line.split(b" ")[0] for line in text.splitlines()}
    assert len(visitors) > 1_000
    assert by_visitor(back) == by_visitor(text)


def by_visitor(text):
    found = {}
    for line in text.split(b"\n")[:-1]:
        found.setdefault(line.split(b" ")[0], []).append(line)
    return found


def test_lines_with_keys_keep_their_order_by_key(cluster):
    one, two, _ = cluster.nodes
    topic = create_topic(one, "keyed", partitions=3)
    pairs = [(b"key%d" % (n % 17), b"\xff%d" % n) for n in range(1_000)]
    text = b"".join(k + b"=" + v + b"\n" for k, v in pairs)
    done(milena(one, "produce", topic, "--key-separator", "=", "--batch-bytes", "1024", given=text))
    shown = milena(two, "consume", topic, "--format", "key-value", "--key-separator", "=")
    found = [tuple(line.split(b"=", 1)) for line in done(shown).stdout.split(b"\n")[:-1]]
    for key in {k for k, _ in pairs}:
        assert [p for p in found if p[0] == key] == [p for p in pairs if p[0] == key]


def test_keys_from_json_headers_and_tombstones(cluster):
    one = cluster.node(1)
    topic = create_topic(one, "json-keys")
    given = b'{"user":{"id":7}}\n{"user":{"id":"\xc3\xa9"}}\n'
    done(milena(one, "produce", topic, "--key-field", "user.id", "--header", "a=1", given=given))
    done(milena(one, "produce", topic, "--key-separator", ":", "--null-marker", "-", given=b"7:-"))
    shown = done(milena(one, "consume", topic, "--format", "json")).stdout
    records = [json.loads(line) for line in shown.splitlines()]
    assert [(r["offset"], r["key"], r["value"]) for r in records] == [
        (0, "7", '{"user":{"id":7}}'),
        (1, "é", '{"user":{"id":"é"}}'),
        (2, "7", None),
    ]
    assert records[0]["headers"] == [{"key": "a", "value": "1"}]
    assert "headers" not in records[2]


def test_lines_of_a_pipe_arrive_while_it_is_open(cluster):
    one, two, _ = cluster.nodes
    topic = create_topic(one, "pipe")
    with running(two, "produce", topic, stdin=subprocess.PIPE) as process:
        for number in range(3):
            process.stdin.write(b"line %d\n" % number)
            process.stdin.flush()
            eventually(lambda n=number: end_offset(one, topic) == n + 1)
        process.stdin.close()
        assert process.wait(DEADLINE_S) == 0


def until_hung_up(terminal):
    """All that is shown there. Who only looks in the end may find its beginning: a terminal holds 4 KB."""
    shown = b""
    with contextlib.suppress(OSError):
        while piece := os.read(terminal, 1 << 16):
            shown += piece
    return shown


def test_on_a_terminal_a_bar_shows_how_far_into_a_file_it_is(cluster, tmp_path):
    one = cluster.node(1)
    topic = create_topic(one, "bar")
    (tmp_path / "lines").write_bytes(b"line\n" * 1_000)
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (24, 100))
    try:
        words = command(one, "produce", topic, str(tmp_path / "lines"))
        with in_background(lambda: until_hung_up(ours)) as reading:
            try:
                ended = subprocess.run(words, stderr=theirs, timeout=DEADLINE_S, check=False)
            finally:
                os.close(theirs)
        printed = reading.result()
        assert ended.returncode == 0, printed
    finally:
        os.close(ours)
    assert b"produce: 100%" in printed
    assert b"B/s" in printed
    assert b"1000 records, 4000 bytes" in printed


# -- what goes wrong with lines --------------------------------------------------------------------


def test_a_bad_line_stops_before_it_and_names_itself(cluster):
    one = cluster.node(1)
    topic = create_topic(one, "bad-line")
    given = b"".join(b"k=%d\n" % n for n in range(500)) + b"no key\nk=after\n"
    result = done(milena(one, "produce", topic, "--key-separator", "=", given=given), code=1)
    assert b"line 501: no key separator '=' in 'no key'" in result.stderr
    assert b"--on-bad-line skip" in result.stderr
    assert end_offset(one, topic) == 500
    words = ("--key-separator", "=", "--on-bad-line", "skip")
    result = done(milena(one, "produce", topic, *words, given=given))
    assert b"1 bad line skipped" in result.stderr
    assert end_offset(one, topic) == 1_001


def test_a_record_that_is_not_taken_is_named_by_its_line(cluster):
    one = cluster.node(1)
    topic = create_topic(one, "too-large", max_message_bytes=10_000)
    given = b"small\n" * 10 + b"x" * 20_000 + b"\n"
    result = done(milena(one, "produce", topic, "--linger-ms", "0", "--json", given=given), code=1)
    assert b"line 11 was not acknowledged" in result.stderr
    assert b"10 records written, all from lines before it" in result.stderr
    summary = json.loads(result.stdout)
    assert (summary["records"], summary["first_failed_line"]) == (10, 11)
    assert end_offset(one, topic) == 10


def test_records_for_a_partition_that_is_missing_are_found_before_or_where_they_come(
    cluster, tmp_path
):
    """A file is checked before the first record. A pipe stops at the record, and the run goes on from its line."""
    one = cluster.node(1)
    topic = create_topic(one, "too-few", partitions=2)
    lines = [b'{"value":"%d","partition":%d}\n' % (n, n // 10) for n in range(30)]
    path = tmp_path / "records"
    path.write_bytes(b"".join(lines))
    words = ("produce", topic, "--format", "json")
    result = done(milena(one, *words, str(path)), code=4)
    assert b"first say milena topics alter too-few --partitions 3" in result.stderr
    assert [end_offset(one, topic, p) for p in (0, 1)] == [0, 0]
    result = done(milena(one, *words, given=path.read_bytes()), code=1)
    assert (
        b"line 21 was not acknowledged: too-few has partitions 0 to 1, not 2; 20 records written, all from lines "
        b"before it: to go on, give the input from line 21 on (tail -n +21)" in result.stderr
    )
    done(milena(one, "topics", "alter", topic, "--partitions", "3"))
    done(milena(one, *words, given=b"".join(lines[20:])))
    assert [end_offset(one, topic, p) for p in range(3)] == [10, 10, 10]
    done(milena(one, *words, str(path)))
    assert [end_offset(one, topic, p) for p in range(3)] == [20, 20, 20]


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (("-p", "3"), 4, b"has partitions 0 to 0, not 3"),
        (("no-such-file",), 64, b"no-such-file"),
        (("--gzip",), 1, b"cannot read standard input: it is not, or no longer, gzip"),
        (("--key-separator", "=", "--key-field", "a"), 64, b"one of --key-separator and"),
        (("--key-separator", ""), 64, b"empty"),
        (("--acks", "2"), 64, b"--acks"),
        (("--linger-ms", "5000", "--timeout", "1"), 64, b"linger"),
    ],
)
def test_a_wrong_command_line_writes_nothing(cluster, words, code, complaint):
    one = cluster.node(1)
    topic = "untouched"
    if topic not in call(one, "GET /topics").json:
        create_topic(one, topic)
    result = done(milena(one, "produce", topic, *words, given=b"line\n"), code=code)
    assert complaint in result.stderr
    assert end_offset(one, topic) == 0


def test_packed_input_that_ends_too_early_loses_nothing_of_what_came_before(cluster):
    one = cluster.node(1)
    topic = create_topic(one, "torn-gzip")
    text = b"".join(b"%d\n" % n for n in random.Random(2).sample(range(10**9), 100_000))
    result = milena(one, "produce", topic, "--gzip", given=gzip.compress(text)[:-5_000])
    assert b"cannot read standard input" in done(result, code=1).stderr
    back = done(milena(one, "consume", topic)).stdout
    assert 0 < len(back) < len(text)
    assert text.startswith(back)


def test_the_first_interrupt_stops_reading_and_writes_what_was_read(cluster):
    one = cluster.node(1)
    topic = create_topic(one, "interrupted")
    words = ("produce", topic, "--linger-ms", "500", "--json")
    with running(one, *words, stdin=subprocess.PIPE) as process:
        process.stdin.write(b"one\n")
        process.stdin.flush()
        eventually(lambda: end_offset(one, topic) == 1)
        process.stdin.write(b"two\nthree\nnot yet a li")
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        out, err = process.stdout.read(), process.stderr.read()
        assert process.wait(DEADLINE_S) == 130, err
    summary = json.loads(out)
    assert summary["is_interrupted"]
    # Whether the last lines were read before the signal came is chance; that what was read is written is not.
    assert summary["lines"] == summary["records"] == end_offset(one, topic) in (1, 3)
    assert b"interrupted after line %d" % summary["lines"] in err


# -- where to begin, where to end ------------------------------------------------------------------


@pytest.fixture(scope="module")
def numbers(cluster):
    """A topic of the numbers 0 to 99, in batches of ten."""
    topic = create_topic(cluster.node(1), "numbers")
    for tens in range(10):
        batch = encoded(*(b"%d" % n for n in range(tens * 10, tens * 10 + 10)))
        assert write_batch(cluster.node(1), topic, batch).status == 200
    return topic


def shown(node, topic, *words):
    return [int(n) for n in done(milena(node, "consume", topic, *words)).stdout.split()]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), range(100)),
        (("--from-beginning",), range(100)),
        (("--offset", "37"), range(37, 100)),
        (("--offset", "37", "-n", "5"), range(37, 42)),
        (("--offset", "100"), ()),
        (("--last", "7"), range(93, 100)),
        (("--last", "700"), range(100)),
        (("--last", "0"), ()),
        (("--time", "-1d"), range(100)),
        (("--time", "2026-01-01"), range(100)),
        (("--time", "-0s"), ()),
        (("-n", "0"), ()),
        (("--order", "time", "-n", "11"), range(11)),
        (("--from-beginning", "-f", "-n", "100"), range(100)),
    ],
    ids=str,
)
def test_reading_begins_and_ends_where_it_is_told(cluster, numbers, words, expected):
    for node in cluster.nodes:
        assert shown(node, numbers, *words) == list(expected)


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        (("--offset", "101"), 1, b"offset 101 is above the end; readable are the offsets from 0"),
        (("-p", "1"), 4, b"has partitions 0 to 0, not 1"),
        (("--offset", "1", "--last", "1"), 64, b"give one of"),
        (("--time", "noon"), 64, b"is not a time"),
        (("-f", "--order", "time"), 64, b"leave out --follow"),
        (("--format", "xml"), 64, b"--format"),
    ],
)
def test_a_reader_that_is_asked_for_what_is_not_there_says_so(
    cluster, numbers, words, code, complaint
):
    result = done(milena(cluster.node(1), "consume", numbers, *words), code=code)
    assert complaint in result.stderr
    assert not result.stdout


def test_a_topic_that_is_not_there_is_exit_code_4(cluster):
    result = done(milena(cluster.node(1), "consume", "no-such-topic"), code=4)
    assert b"no-such-topic" in result.stderr


def test_deleted_records_are_an_error_or_a_reset(cluster):
    one = cluster.node(1)
    topic = create_topic(one, "deleted")
    text = b"".join(b"%09d\n" % n for n in range(3_000))
    done(milena(one, "produce", topic, "--batch-bytes", "4096", given=text))
    first = 1_234
    deletion = call(
        one, f"POST /topics/{topic}/partitions/0/records:delete", {"before_offset": first}
    )
    assert deletion.json["log_start_offset"] == first
    result = done(milena(one, "consume", topic, "--offset", "0"), code=1)
    assert b"offset 0 was deleted" in result.stderr
    reset = milena(one, "consume", topic, "--offset", "0", "--on-out-of-range", "earliest")
    found = done(reset).stdout.split()
    assert [int(found[0]), int(found[-1])] == [first, 2_999]
    assert b"records were deleted before they were read" in reset.stderr
    assert shown(one, topic) == [int(n) for n in found]


def test_partitions_merged_by_time_are_in_the_order_of_their_timestamps(cluster):
    one = cluster.node(1)
    topic = create_topic(one, "merged", partitions=3)
    base = int(time.time() * 1000) - 60_000
    for partition in range(3):
        records = [
            {"value": n, "timestamp": base + n, "partition": partition}
            for n in range(partition, 3_000, 3)
        ]
        assert call(one, f"POST /topics/{topic}", {"records": records}).status == 200
    assert shown(one, topic, "--order", "time") == list(range(3_000))
    assert shown(one, topic) == [*range(0, 3_000, 3), *range(1, 3_000, 3), *range(2, 3_000, 3)]


def test_whoever_reads_may_stop_when_it_likes(cluster, numbers):
    """``| head``: the command ends cleanly when nobody reads on."""
    topic = create_topic(cluster.node(1), "head")
    batch = encoded(*[b"x" * 1_000] * 1_000)
    for _ in range(5):
        assert write_batch(cluster.node(1), topic, batch).status == 200
    with running(cluster.node(1), "consume", topic) as process:
        assert process.stdout.read(10) == b"x" * 10
        process.stdout.close()
        assert process.wait(DEADLINE_S) == 0
        assert process.stderr.read() == b""


# -- following while nodes die ---------------------------------------------------------------------


def test_following_shows_records_as_they_come_and_ends_with_an_interrupt(cluster):
    one, two, _ = cluster.nodes
    topic = create_topic(one, "tail", partitions=2)
    with running(two, "consume", topic, "-f", "--from-beginning") as process:
        for number in range(4):
            done(milena(one, "produce", topic, "-p", str(number % 2), given=b"%d\n" % number))
            assert process.stdout.readline() == b"%d\n" % number
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130


def test_a_follower_without_a_start_begins_with_what_comes(cluster, numbers):
    """It has to be at the end before anything is written, which nobody outside can see: hence two readers."""

    async def read():
        async with (
            Client(cluster.node(2).url) as client,
            client.reader(numbers, 0, start=StartAt.LATEST, follow=True) as reader,
        ):
            end = await asyncio.to_thread(end_offset, cluster.node(1), numbers)
            await asyncio.to_thread(write_batch, cluster.node(1), numbers, encoded(b"new"))
            record = await anext(aiter(reader))
            return end, record.offset, record.value

    end, offset, value = asyncio.run(read())
    assert (offset, value) == (end, b"new")


def test_a_leader_that_is_killed_is_not_noticed_by_those_who_follow(cluster):
    one = cluster.node(1)
    topic = create_topic(one, "killed-leader")
    total = 6_000
    leader = leader_of(cluster, topic)
    survivor = others(cluster, leader)[0]
    with (
        running(survivor, "consume", topic, "-f", "--from-beginning", "-n", str(total)) as reader,
        running(survivor, "produce", topic, "--linger-ms", "2", stdin=subprocess.PIPE) as writer,
    ):
        for number in range(total):
            writer.stdin.write(b"%d\n" % number)
            if number % 500 == 499:
                writer.stdin.flush()
                eventually(lambda n=number: end_offset(survivor, topic) > n - 500)
            if number == total // 2:
                leader.process.kill()
        writer.stdin.close()
        found = reader.stdout.read()
        assert writer.wait(DEADLINE_S) == 0, writer.stderr.read()
        assert reader.wait(DEADLINE_S) == 0
    assert leader_of(cluster, topic) is not leader
    assert [int(n) for n in found.split()] == list(range(total)), "each once, in order"
    restart(cluster, leader)
    wait_in_sync(cluster, topic)


def test_a_reader_outlives_every_node_one_after_the_other(cluster):
    """Whatever node is down, a reader that knows one URL goes on: the others were told to it."""
    one = cluster.node(1)
    topic = create_topic(one, "rolling")

    async def read():
        found = []
        async with (
            Client(one.url) as client,
            client.reader(topic, 0, follow=True, wait_ms=500) as reader,
        ):
            await client.metadata.view()
            for node in cluster.nodes:
                await asyncio.to_thread(node.process.kill)
                writer = others(cluster, node)[0]
                number = len(found)
                await asyncio.to_thread(
                    eventually,
                    lambda w=writer, n=number: (
                        write_batch(w, topic, encoded(b"%d" % n, producer=(producer, 0, n))).status
                        == 200
                    ),
                )
                found.append((await anext(aiter(reader))).value)
                # On this thread: a node ends with the thread that started it.
                node.process.start()
                await asyncio.to_thread(wait_ready, cluster, node)
                await asyncio.to_thread(wait_in_sync, cluster, topic)
        return found

    producer = call(one, "POST /producers", {}).json["producer_id"]
    assert asyncio.run(read()) == [b"0", b"1", b"2"]


def test_a_topic_that_is_deleted_under_a_follower_ends_it(cluster):
    one = cluster.node(1)
    topic = create_topic(one, "vanishing")
    done(milena(one, "produce", topic, given=b"line\n"))
    with running(one, "consume", topic, "-f", "--from-beginning") as process:
        assert process.stdout.readline() == b"line\n"
        delete_topic(one, topic)
        assert process.wait(DEADLINE_S) == 4
        assert topic.encode() in process.stderr.read()


# -- the reader itself -----------------------------------------------------------------------------


async def test_the_reader_starts_anywhere_and_resumes_exactly(cluster, numbers):
    async with Client([node.url for node in cluster.nodes]) as client:

        async def first(start):
            async with client.reader(numbers, 0, start=start, end=100) as reader:
                async for record in reader:
                    return record.offset
            return None

        assert await first(StartAt.EARLIEST) == 0
        assert await first(42) == 42
        assert await first(LastN(101)) == 0
        assert await first(TimestampMs(0)) == 0
        offset, found = 0, []
        while offset < 100:
            async with client.reader(numbers, 0, start=offset, end=100, max_bytes=1) as reader:
                async for record in reader:
                    found.append(record.offset)
                    if len(found) % 7 == 0:
                        break
                offset = reader.next_offset
        assert found == list(range(100))


async def test_errors_of_the_reader_name_the_range(cluster, numbers):
    async with Client(cluster.node(1).url) as client:
        end = await asyncio.to_thread(end_offset, cluster.node(1), numbers)
        with pytest.raises(UnreadableOffsetError) as caught:
            async with client.reader(numbers, 0, start=end + 5, follow=True) as reader:
                await anext(reader)
        assert (caught.value.log_start_offset, caught.value.high_watermark) == (0, end)
        policy = OnOutOfRange.EARLIEST
        async with client.reader(
            numbers, 0, start=end + 5, follow=True, on_out_of_range=policy
        ) as reader:
            assert (await anext(reader)).offset == 0


# -- servers that are none -------------------------------------------------------------------------


def metadata_of(url):
    topic = {
        "name": "t",
        "configs": {},
        "partitions": [
            {"partition": 0, "leader": 1, "leader_epoch": 1, "replicas": [1], "isr": [1]}
        ],
    }
    broker = {"broker_id": 1, "url": url, "rack": None, "is_fenced": False, "is_draining": False}
    return {
        "cluster_id": "c",
        "version": 1,
        "controller_id": 1,
        "brokers": [broker],
        "topics": [topic],
    }


def offsets_headers(**values):
    headers = {"Start-Offset": 0, "Next-Offset": 0, "High-Watermark": 9, "Log-Start-Offset": 0}
    headers.update(values)
    return {f"Milena-{name}": str(value) for name, value in headers.items()}


HOSTILE_ANSWERS = {
    "page": {"text": "<html>hello</html>", "content_type": "text/html"},
    "garbage": {"body": os.urandom(5_000), "headers": offsets_headers()},
    "no headers": {"body": b""},
    "negative": {"body": b"", "headers": offsets_headers(**{"Log-Start-Offset": -1})},
    "other offset": {"body": b"", "headers": offsets_headers(**{"Start-Offset": 5})},
    "500": {"status": 500, "text": "no"},
    "redirect": {"status": 302, "headers": {"Location": "http://127.0.0.1:1/"}},
}


@pytest.mark.parametrize("name", HOSTILE_ANSWERS)
async def test_a_server_that_speaks_nonsense_is_an_error_and_not_a_hang(name):
    answer = dict(HOSTILE_ANSWERS[name])
    if "body" in answer:
        answer["content_type"] = "application/vnd.milena.batch"

    async def fetch(request):
        return web.Response(**answer)

    async def metadata(request):
        return web.json_response(metadata_of(f"http://{request.host}"))

    app = web.Application()
    app.add_routes(
        [web.get("/metadata", metadata), web.get("/topics/t/partitions/0/records", fetch)]
    )
    async with serving(app) as url, Client(url) as client:
        with pytest.raises((UnexpectedAnswerError, AnswerError)):
            async with client.reader("t", 0, start=3, follow=True, patience_ms=300) as reader:
                await anext(reader)


async def test_batches_of_garbage_are_refused_before_they_are_used(cluster, numbers):
    """A node's answers with one byte flipped on the way, each time another: the reader gives out nothing wrong."""
    node = cluster.node(1)
    chance = random.Random(5)

    async def metadata(request):
        return web.json_response(metadata_of(f"http://{request.host}"))

    async def fetch(request):
        query = request.query_string.replace("timeout=5000", "timeout=0")
        answer = await asyncio.to_thread(
            call,
            node,
            f"GET /topics/{numbers}/partitions/0/records?{query}",
            headers={"Accept": "application/vnd.milena.batch"},
        )
        body = bytearray(answer.body)
        if body and chance.random() < 0.7:
            body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
        kept = {k: v for k, v in answer.headers.items() if k.startswith("Milena-")}
        return web.Response(
            body=bytes(body), headers={**kept, "Content-Type": "application/vnd.milena.batch"}
        )

    app = web.Application()
    app.add_routes(
        [web.get("/metadata", metadata), web.get("/topics/t/partitions/0/records", fetch)]
    )
    found, damaged = [], 0
    async with serving(app) as url, Client(url) as client:
        while len(found) < 100 or not damaged:
            if len(found) == 100:
                # Patience never came to its end: how many requests there are is a matter of time, and so is chance.
                found.clear()
            try:
                async with client.reader("t", 0, start=len(found), end=100, max_bytes=1) as reader:
                    async for record in reader:
                        assert record.offset == len(found)
                        found.append(record.value)
            except UnexpectedAnswerError:
                damaged += 1
    assert found == [b"%d" % n for n in range(100)]
