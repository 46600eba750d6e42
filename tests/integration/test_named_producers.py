"""Producers with a name against real nodes: what they write is there once and in order, whoever is killed meanwhile."""

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import milena
from tests.support.clusters.live_cluster import (
    create_topic,
    eventually,
    leader_of,
    restart,
    running_cluster,
    values,
)
from tests.support.http.console import blocks

pytestmark = pytest.mark.integration

DOC = (Path(__file__).parents[2] / "docs" / "exactly-once.md").read_text(encoding="utf-8")

LINES = 40_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("named")) as nodes:
        yield nodes


def produce(node, topic, *words, **options):
    command = [sys.executable, "-m", "milena", "--url", node.url, "produce", topic, *words]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.mark.smoke
def test_an_input_that_is_given_again_is_there_once_after_its_producer_and_a_leader_were_killed(
    cluster, tmp_path
):
    topic = create_topic(cluster.node(1), "loaded", partitions=2)
    file = tmp_path / "lines"
    file.write_text("".join(f"{n % 7}\t{n}\n" for n in range(LINES)))
    words = (topic, str(file), "--name", "loader", "--key-separator", "\t", "--json")

    with produce(cluster.node(1), *words, "--rate", "20000") as first:
        eventually(lambda: written(cluster.node(2), topic) or first.poll() is not None)
        first.kill()
    victim = leader_of(cluster, topic)
    victim.process.kill()
    try:
        survivor = next(node for node in cluster.nodes if node is not victim)
        with produce(survivor, *words) as second:
            summary, said = second.communicate(timeout=60)
        assert second.returncode == 0, said
    finally:
        restart(cluster, victim)
    counted = json.loads(summary)
    assert counted["written_before"] + counted["records"] == LINES
    assert counted["written_before"] > 0
    assert counted["records"] > 0

    found = whole(cluster.node(3), topic, partitions=2)
    assert sorted(n for part in found for n in part) == list(range(LINES))
    for part in found:
        for key in range(7):
            of_key = [n for n in part if n % 7 == key]
            assert of_key == sorted(of_key)

    with produce(cluster.node(3), *words) as third:
        again = json.loads(third.communicate(timeout=60)[0])
    assert (third.returncode, again["records"], again["written_before"]) == (0, 0, LINES)


def test_the_program_of_the_page_writes_each_line_once_wherever_it_ended(cluster):
    topic = create_topic(cluster.node(1), "page")
    program = next(program for program in blocks(DOC, "python") if "def load" in program)
    names: dict[str, object] = {}
    exec(program, names)

    def ending(lines):
        yield from lines[:1500]
        raise ZeroDivisionError

    lines = [str(n) for n in range(2500)]
    with pytest.raises(ZeroDivisionError):
        names["load"](cluster.node(1).url, "page-1", topic, ending(lines))
    for _ in range(2):
        assert names["load"](cluster.node(2).url, "page-1", topic, iter(lines)) == len(lines)
    eventually(lambda: whole(cluster.node(3), topic, partitions=1) == [list(range(2500))])


def written(node, topic):
    return [value for partition in (0, 1) for value in values(node, topic, partition)]


def whole(node, topic, *, partitions):
    """Values of all partitions, read with the client, which pages as it must."""
    with milena.sync.Client(node.url) as client:
        parts = []
        for partition in range(partitions):
            with client.reader(topic, partition) as reader:
                parts.append([int(record.value) for batch in reader.batches() for record in batch])
    return parts


def test_a_producer_whose_name_was_taken_over_stops_and_says_so(cluster):
    topic = create_topic(cluster.node(1), "taken")
    with produce(cluster.node(1), topic, "--name", "holder") as former:
        former.stdin.write("0\n")
        former.stdin.flush()
        eventually(lambda: values(cluster.node(2), topic) == [0])
        with produce(cluster.node(2), topic, "--name", "holder") as heir:
            _, said = heir.communicate("0\n1\n", timeout=60)
        assert heir.returncode == 0, said
        assert "1 record, " in said
        assert "1 written before" in said
        _, said = former.communicate("x\n", timeout=60)
    assert former.returncode != 0
    assert "line 2 was not acknowledged" in said
    assert "another program took the name holder over" in said
    assert "Traceback" not in said
    eventually(lambda: values(cluster.node(3), topic) == [0, 1])


def test_an_input_with_fewer_records_than_were_written_is_not_the_one_of_before(cluster):
    topic = create_topic(cluster.node(1), "short")
    for text, code in (("a\nb\nc\n", 0), ("a\n", 1)):
        with produce(cluster.node(1), topic, "--name", "short") as run:
            _, said = run.communicate(text, timeout=60)
        assert run.returncode == code, said
    assert "3 records of short are written to short, and the input has 1" in said


def test_a_program_repeats_what_it_does_not_know_while_leaders_are_killed(cluster):
    """Each record is there once, although the program begins each time at what it remembers, which is too little."""
    topic = create_topic(cluster.node(1), "program")
    stop = threading.Event()

    def run():
        count = 0
        with (
            milena.sync.Client([node.url for node in cluster.nodes]) as client,
            client.named_producer("program", topic) as producer,
        ):
            while not stop.is_set():
                first = max(0, count - 3)
                records = [str(n) for n in range(first, count + 5)]
                try:
                    producer.write(first, records)
                except milena.ProducerFencedError:
                    raise
                except milena.ClientError:
                    continue
                count += 5
        return count

    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(run)
        for _ in range(2):
            seen = len(values(cluster.node(1), topic))
            eventually(lambda seen=seen: len(values(cluster.node(1), topic)) > seen or work.done())
            victim = leader_of(cluster, topic)
            victim.process.kill()
            restart(cluster, victim)
        stop.set()
        count = work.result(timeout=120)
    eventually(lambda: values(cluster.node(2), topic) == list(range(count)))
