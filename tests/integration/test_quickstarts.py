"""The introductions of the REST proxies in use: against one node, and with each request sent to the next one."""

import itertools
import json
import time
from urllib.parse import urlsplit

import pytest

from loadtest.cluster.local_cluster import LocalCluster, LocalNode
from tests.support.clusters.live_cluster import (
    Answer,
    call,
    cluster_id,
    eventually,
    running_cluster,
)
from tests.support.http.quickstarts import ALL, BASE, Quickstart, Step

pytestmark = pytest.mark.integration

STEP_S_MAX = 30.0
"""A step that takes longer would make anybody think that it does not work; most of it is for a busy machine."""

LISTS = {"topics", "partitions", "brokers", "consumer-groups", "consumers"}
"""A list is what the asked node knows: another node's change may be a moment away."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    directory = tmp_path_factory.mktemp("quickstarts")
    with running_cluster(directory, auto_create_topics="true") as nodes:
        yield nodes


@pytest.mark.parametrize("quickstart", ALL, ids=str)
def test_it_works_against_one_node(cluster: LocalCluster, quickstart: Quickstart) -> None:
    Tour(cluster, quickstart, "one-node").take([cluster.node(2)])


@pytest.mark.parametrize("quickstart", ALL, ids=str)
def test_it_works_with_each_request_sent_to_the_next_node(
    cluster: LocalCluster, quickstart: Quickstart
) -> None:
    Tour(cluster, quickstart, "all-nodes").take(cluster.nodes)


class Tour:
    """One run of a quickstart, under names of its own."""

    def __init__(self, cluster: LocalCluster, quickstart: Quickstart, suffix: str) -> None:
        self.quickstart = quickstart
        self.suffix = suffix
        self.cluster_id = cluster_id(cluster.node(1))
        self.base_uri = ""

    def take(self, nodes: "list[LocalNode] | tuple[LocalNode, ...]") -> None:
        """Every step, on one node after the other."""
        for step, node in zip(self.quickstart.steps, itertools.cycle(nodes), strict=False):
            began = time.monotonic()
            if step.method == "GET" and step.path.rpartition("/")[2] in LISTS:
                eventually(lambda step=step, node=node: self.passes(step, node))
            else:
                self.passes(step, node)
            took = time.monotonic() - began
            assert took < STEP_S_MAX, f"{step} took {took:.1f} s"

    def passes(self, step: Step, node: LocalNode) -> bool:
        """Take one step; fails unless it is answered as the quickstart says."""
        self.check(step, node, self.send(step, node))
        return True

    def send(self, step: Step, node: LocalNode) -> Answer:
        """The request as curl would send it; a consumer's address is what its creation answered, but for the node."""
        path = step.path.replace("{cluster}", self.cluster_id)
        if path.startswith(BASE):
            path = urlsplit(self.base_uri).path + path.removeprefix(BASE)
        body = step.body
        if body is not None:
            body = self.renamed(body if isinstance(body, str) else json.dumps(body)).encode()
        return call(node, f"{step.method} {self.renamed(path)}", body, headers=step.headers)

    def renamed(self, text: str) -> str:
        """With this run's names, each of which stands there once."""
        for name in self.quickstart.names:
            text = text.replace(f"{name}-{self.suffix}", name).replace(
                name, f"{name}-{self.suffix}"
            )
        return text

    def check(self, step: Step, node: LocalNode, answer: Answer) -> None:
        """It is what the quickstart says."""
        statuses = step.status if isinstance(step.status, tuple) else (step.status,)
        assert answer.status in statuses, f"{step}: {answer}"
        if answer.status == 204:
            assert answer.body == b"", f"{step}: {answer}"
            return
        found = documents(answer.body)
        self.note_base_uri(found, node)
        assert step.answer == self.original(found), f"{step}: {answer}, not {step.answer}"
        if step.media is not None:
            assert answer.headers["Content-Type"].split(";")[0] == step.media

    def original(self, found: object) -> object:
        """With the names that the quickstart uses."""
        return json.loads(json.dumps(found).replace(f"-{self.suffix}", ""))

    def note_base_uri(self, found: object, node: LocalNode) -> None:
        """It names the node that was asked."""
        if isinstance(found, dict) and "base_uri" in found:
            self.base_uri = found["base_uri"]
            assert self.base_uri.startswith(f"{node.url}/consumers/"), found


def documents(body: bytes) -> object:
    """The JSON of a body; a list, where it holds several documents one after the other."""
    text, found, decoder = body.decode().strip(), [], json.JSONDecoder()
    while text:
        document, end = decoder.raw_decode(text)
        found.append(document)
        text = text[end:].lstrip()
    if not found:
        return None
    return found[0] if len(found) == 1 else found
