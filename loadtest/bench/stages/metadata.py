"""Compare commits of the metadata quorum with etcd and a bare server: a change of one config, a put of one key."""

import json
from base64 import b64encode
from contextlib import AsyncExitStack

from loadtest.bench.clients.http_load import Ask, encode_request
from loadtest.bench.measuring.rounds import Contender
from loadtest.bench.measuring.samples import Rounds
from loadtest.bench.plan import BenchPlan
from loadtest.bench.rows import cluster as cluster_rows
from loadtest.bench.rows import produce as produce_rows
from loadtest.bench.servers.peers import etcd_cluster, etcd_leader
from loadtest.bench.stages.produce import CLIENTS, bare, http_contender, start_milena, start_peer
from milena.cluster.admin import AdminClient

ALTERED = "altered"
_VALUE_BYTES = 100
_VALUES = 16
"""The number of different values; setting a value again would be no change."""
_FIRST_MS = 86_400_000


async def commits(plan: BenchPlan, stack: AsyncExitStack, rounds: Rounds) -> list[Contender]:
    """Compare one client that waits for each commit, and 64 such clients."""
    subject = await start_milena(plan, stack)
    await subject.create_topic(ALTERED, is_durable=True)
    url = await subject.controller_url()
    ask = await config_ask(url)
    contenders = await _etcd(plan, stack, rounds)
    # One client waits for the disk. With 64 clients, many commits share a sync, and the interpreter is the limit.
    contenders += await bare(plan, stack, "PUT", {produce_rows.BARE_SYNCED_ONE: 1})
    contenders += await bare(plan, stack, "POST", {produce_rows.BARE: CLIENTS})
    for name, connections in ((cluster_rows.COMMIT_ONE, 1), (cluster_rows.COMMIT_MANY, CLIENTS)):
        contenders.append(
            http_contender(name, url, ask, connections=connections, pids=subject.pids)
        )
    return contenders


async def config_ask(url: str) -> Ask:
    """Return changes of one topic's config, to be sent to the node that leads the quorum."""
    async with AdminClient(url) as admin:
        cluster = await admin.cluster_id()
    path = f"/v3/clusters/{cluster}/topics/{ALTERED}/configs/delete.retention.ms"
    return Ask(
        requests=[
            encode_request(
                url,
                "PUT",
                path,
                json.dumps({"value": str(_FIRST_MS + number)}).encode(),
                Content_Type="application/json",
            )
            for number in range(_VALUES)
        ]
    )


async def _etcd(plan: BenchPlan, stack: AsyncExitStack, rounds: Rounds) -> list[Contender]:
    names = {cluster_rows.ETCD_ONE: 1, cluster_rows.ETCD_MANY: CLIENTS}
    etcd = start_peer(plan, stack, rounds, names, etcd_cluster(plan.directory / "etcd"))
    if etcd is None:
        return []
    urls, pids = etcd
    url = await etcd_leader(urls)
    body = {
        "key": b64encode(b"topic/orders/0").decode(),
        "value": b64encode(b"x" * _VALUE_BYTES).decode(),
    }
    request = encode_request(url, "POST", "/v3/kv/put", json.dumps(body).encode())
    ask = Ask(requests=[request], proof=b'"revision"')
    return [
        http_contender(name, url, ask, connections=connections, pids=pids)
        for name, connections in names.items()
    ]
