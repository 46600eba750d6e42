"""Every program of docs/client.md runs, and prints what the page says."""

import contextlib
import io
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from milena import sync
from milena.consuming.options import ConsumerKeywords, ConsumerOptions
from milena.producing.options import ProducerKeywords, ProducerOptions
from tests.support.clusters.live_cluster import call, create_topic, ok, running_cluster

pytestmark = pytest.mark.integration

PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("client-docs")) as cluster:
        yield cluster


@pytest.fixture
def url(cluster):
    return cluster.node(1).url


def test_every_program_says_what_it_prints():
    assert len(PROGRAMS) == PAGE.count("```python") >= 6


@pytest.mark.parametrize(("program", "printed"), PROGRAMS, ids=range(len(PROGRAMS)))
def test_a_program_of_the_page_prints_what_the_page_says(url, program, printed):
    assert "http://127.0.0.1:8082" in program
    if "consumer.stop" in program:
        pytest.skip("test_a_worker_leaves_its_group_at_sigterm runs it")
    code = compile(program.replace("http://127.0.0.1:8082", url), "docs/client.md", "exec")
    output = io.StringIO()
    failures = []

    def run():
        try:
            exec(code, {"__name__": "__main__"})
        except BaseException as error:
            failures.append(error)

    with contextlib.redirect_stdout(output):
        # On a thread of its own: a program brings its own event loop.
        thread = threading.Thread(target=run)
        thread.start()
        thread.join(240)
    assert failures == []
    assert not thread.is_alive()
    assert output.getvalue() == printed


WORKERS = [pair for pair in PROGRAMS if "consumer.stop" in pair[0]]


@pytest.mark.parametrize(("program", "printed"), WORKERS, ids=["asyncio", "blocking"])
def test_a_worker_leaves_its_group_at_sigterm(cluster, program, printed):
    """The group is asked at once, long before the session of a worker that just died would end."""
    node = cluster.node(1)
    (group,) = re.findall(r'group="([a-z-]+)"', program)
    topic = create_topic(node, f"jobs-of-{group}")
    with sync.Client(node.url) as client, client.producer() as producer:
        producer.send_many(topic, ["paint", "pack"])
    code = program.replace("http://127.0.0.1:8082", node.url).replace('"jobs"', f'"{topic}"')
    worker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert worker.stdout is not None
        lines = [worker.stdout.readline() for _ in range(2)]
        assert len(ok(call(node, f"GET /groups/{group}"))["members"]) == 1
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0
        described = ok(call(node, f"GET /groups/{group}"))
        lines += worker.stdout.readlines()
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()
    assert described["members"] == []
    assert "".join(lines) == printed
    with sync.Client(node.url) as client:
        assert [found.offset for found in client.admin.group(group).offsets.values()] == [2]


def test_the_table_of_options_is_whole():
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|", PAGE, re.MULTILINE)
    named = {name for cell, _ in rows for name in re.findall(r"`(\w+)`", cell)}
    for keywords, options in (
        (ProducerKeywords, ProducerOptions),
        (ConsumerKeywords, ConsumerOptions),
    ):
        assert set(keywords.__annotations__) <= named
        assert set(keywords.__annotations__) == set(options.__dataclass_fields__)
