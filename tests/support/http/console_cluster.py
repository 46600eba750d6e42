"""A cluster with content for every page of the console: records, a lagging group, a transaction, a user."""

import json
from dataclasses import dataclass
from urllib.parse import quote

from loadtest.cluster.local_cluster import LocalNode
from tests.support.clusters.live_cluster import call, create_topic, eventually, ok

EVIL_GROUP = "<b>evil/.group"


@dataclass(frozen=True)
class Filled:
    """The cluster's content, and a node that serves it."""

    node: LocalNode
    places: tuple[str, ...]
    """The paths of all pages, including those of single topics, groups and others."""


def fill(node: LocalNode) -> Filled:
    """Fill the cluster, and wait until its nodes have measured it."""
    for topic, partitions in (("orders", 6), ("payments", 3), ("visits", 2)):
        create_topic(node, topic, partitions=partitions)
    for number in range(200):
        event = {
            "order": number,
            "status": 500 if number % 50 == 7 else 200,
            "user": f"u{number % 9}",
        }
        records = [{"key": f"u{number % 9}", "value": event}]
        # Make one partition much larger than the others.
        ok(
            call(
                node,
                f"POST /topics/orders/partitions/{2 if number % 4 else 4}",
                {"records": records},
            )
        )
    ok(
        call(
            node, "POST /topics/visits", {"records": [{"value": "<script>alert(1)</script>\u202e"}]}
        )
    )
    offsets = [{"topic": "orders", "partition": p, "offset": 5, "metadata": ""} for p in (2, 4)]
    for group in ("billing", EVIL_GROUP):
        call(node, f"POST /groups/{quote(group, safe='')}/offsets", {"offsets": offsets})
    begins = {"transactional_id": "nightly <i>", "timeout_ms": 900_000}
    begun = ok(call(node, "POST /transactions:begin", begins))
    written = {"records": [{"value": json.dumps({"amount": 1})}]}
    ok(
        call(
            node,
            "POST /topics/payments",
            written,
            headers={"Milena-Transaction": begun["transaction"]},
        )
    )
    ok(call(node, "PUT /users/alice", {"password": "correct horse"}))
    ok(call(node, "POST /users/alice/tokens", {"note": "nightly job"}))
    where = "/v3/clusters/" + ok(call(node, "GET /metadata"))["cluster_id"] + "/acls"
    entry = {"principal": "User:alice", "permission": "ALLOW", "operation": "READ", "host": "*"}
    what = {"resource_type": "TOPIC", "resource_name": "orders", "pattern_type": "PREFIXED"}
    ok(call(node, f"POST {where}", {**entry, **what}))

    def is_seen() -> bool:
        series = ok(call(node, "GET /history?group=billing"))["series"]
        return bool(series) and (series[0]["values"][-1] or 0) > 0

    eventually(is_seen, deadline_s=60)
    return Filled(
        node,
        (
            "#/", "#/nodes", "#/topics", "#/topics/orders", "#/messages", "#/messages/orders",
            "#/messages/visits?from=live", "#/groups", "#/groups/billing",
            f"#/groups/{quote(EVIL_GROUP, safe='')}", "#/transactions", "#/moves", "#/access",
            "#/access/alice", "#/api", "#/api/fetchRecords", "#/nonsense",
        ),
    )  # fmt: skip
