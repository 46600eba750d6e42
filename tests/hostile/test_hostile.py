"""The short form: every attack once, on a small scale, against one real node."""

import asyncio

import pytest

from tests.hostile.attacks import ATTACKS, Scale
from tests.hostile.scram_attacks import (
    CHANGES,
    ROWS,
    SCRAM_ATTACKS,
    authorization,
    closed_cluster,
    sign_in,
)
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


REFUSED, ILLEGAL_STATE = "58", "34"
"""Codes of the responses to messages of SASL: no good credentials, and no exchange under way."""
UNSUPPORTED_MECHANISM, UNACCEPTABLE = "33", "93"


def test_a_closed_node_stands_attacks_on_scram(tmp_path, capsys):
    with closed_cluster(tmp_path, 1) as cluster:
        assaults = asyncio.run(
            besiege(
                cluster,
                SCRAM_ATTACKS,
                SHORT,
                print,
                authorization=authorization(),
                sign_in=sign_in,
            )
        )
    by_name = {assault.name: assault.outcomes for assault in assaults}
    gone = {"closed", "reset"}
    for name in ("malformed-scram", "random-scram", "wrong-proofs"):
        assert set(by_name[name]) <= {REFUSED, *gone}, by_name[name]
    for name in ("disordered-scram", "replayed-scram"):
        assert set(by_name[name]) <= {REFUSED, ILLEGAL_STATE, *gone}, by_name[name]
        assert by_name[name][REFUSED], by_name[name]
    assert by_name["immense-credentials"] == {
        UNACCEPTABLE: len(CHANGES) - 4 + ROWS,
        UNSUPPORTED_MECHANISM: 4,
    }
    for name in ("first-messages", "unread-responses"):
        assert set(by_name[name]) <= {"waiting", *gone}, by_name[name]
    # The node stopped looking at the proofs of one address.
    assert by_name["wrong-proofs"]["closed"]
    assert all(assault.tally.signed_in for assault in assaults)
