"""The short form: every attack once, on a small scale, against one real node."""

import asyncio

import pytest

from tests.hostile.attacks import ATTACKS, Scale
from tests.hostile.siege import besiege
from tests.support.clusters.live_cluster import running_cluster

pytestmark = pytest.mark.integration

SHORT = Scale(
    large_bodies=2,
    body_mb=60,
    slow_senders=40,
    slow_seconds=0.5,
    idle_connections=200,
    garbage=30,
    handshakes=20,
    bombs=3,
    json_bodies=2,
    # How quick a node is, is judged by the long form: here other tests share the processors.
    patience_s=60.0,
    latency_s_max=20.0,
)

CLEAR = {
    "200",
    "400",
    "404",
    "408",
    "409",
    "413",
    "415",
    "422",
    "429",
    "closed",
    "reset",
    "refused",
    "waiting",
    "open",
}
"""What may come of an attack: an answer that says what is wrong, or a connection that is gone. Never silence."""


def test_a_node_stands_every_attack(tmp_path, capsys):
    with running_cluster(tmp_path, node_count=1) as cluster:
        assaults = asyncio.run(besiege(cluster, ATTACKS, SHORT, print))
    for assault in assaults:
        assert set(assault.outcomes) <= CLEAR, assault
    by_name = {assault.name: assault.outcomes for assault in assaults}
    for name in ("declared-bodies", "chunked-bodies", "content-encoding-bombs", "batch-bombs"):
        assert set(by_name[name]) <= {"413", "415", "closed", "reset"}, by_name[name]
    assert set(by_name["unwritable-numbers"]) <= {"400", "404", "422"}, by_name
    assert by_name["escaped-strings"] == {"400": 2}
    assert set(by_name["unknown-groups"]) == {"404"}
    assert by_name["large-json-bodies"] == {"200": 2}
    assert by_name["deep-json"]["400"]
    assert set(by_name["hostile-readers"]) <= {"200", "waiting", "open", "closed"}
    assert by_name["hostile-readers"]["200"] > by_name["hostile-readers"]["waiting"]
