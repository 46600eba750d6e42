"""Compare transactions with the same writes outside of them: single requests, batches of a thousand, and the commit."""

import asyncio
import json
from contextlib import AsyncExitStack, closing
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

from loadtest.bench.clients.http_load import Ask, HttpLoadError, encode_request
from loadtest.bench.clients.one_client import OneClient, http_is_whole
from loadtest.bench.measuring.rounds import Contender, Turn
from loadtest.bench.measuring.samples import Rounds
from loadtest.bench.plan import BenchPlan
from loadtest.bench.rows import transactions as transactions_rows
from loadtest.bench.servers.subject import JSON_TYPE, json_ask
from loadtest.bench.stages.metadata import ALTERED, config_ask
from loadtest.bench.stages.produce import (
    BATCH_CLIENTS,
    CLIENTS,
    SMALL,
    http_contender,
    start_milena,
)

TOPIC, PARTITIONS = "moved", 6
BATCH_RECORDS = 1_000
TRANSACTIONAL_ID = "bench"
_NEW_KEY = "its-own-key"
_COMMITTED = b'"committed":true'
_FIRST_COMMIT = b'"is_duplicate":false'


async def transactions(plan: BenchPlan, stack: AsyncExitStack, rounds: Rounds) -> list[Contender]:
    """Compare writes to one topic of six partitions that syncs: a topic that does not sync accepts no transactions."""
    del rounds
    subject = await start_milena(plan, stack)
    url = await subject.create_topic(TOPIC, is_durable=True, partitions=PARTITIONS)
    controller = await subject.controller_url()
    await subject.create_topic(ALTERED, is_durable=True)
    plain = json_ask(url, TOPIC, records=1, size=SMALL, acks="all")
    two = _transaction_ask(url, partitions=2)
    keyed = _transaction_ask(url, partitions=2, Idempotency_Key=_NEW_KEY)
    keyed = replace(keyed, fresh=_NEW_KEY.encode(), proof=_FIRST_COMMIT)
    six = _transaction_ask(url, partitions=PARTITIONS, records=BATCH_RECORDS)
    batch = json_ask(url, TOPIC, records=BATCH_RECORDS, size=SMALL, acks="all")
    asks = {
        transactions_rows.PLAIN_WRITES: (plain, CLIENTS),
        transactions_rows.TRANSACTIONS: (two, CLIENTS),
        transactions_rows.KEYED_TRANSACTIONS: (keyed, CLIENTS),
        transactions_rows.PLAIN_BATCHES: (batch, BATCH_CLIENTS),
        transactions_rows.TRANSACTION_BATCHES: (six, BATCH_CLIENTS),
    }
    contenders = [
        http_contender(name, url, ask, connections=connections, pids=subject.pids)
        for name, (ask, connections) in asks.items()
    ]
    altering = await config_ask(controller)
    contenders.append(
        http_contender(
            transactions_rows.CONFIG_COMMITS, controller, altering, connections=1, pids=subject.pids
        )
    )
    contenders += [_commits(url, subject.pids, is_read=is_read) for is_read in (False, True)]
    return contenders


def _transaction_ask(url: str, *, partitions: int, records: int = 1, **headers: str) -> Ask:
    """Return requests with ``records`` records for each of the first ``partitions`` partitions."""
    written = [{"value": "x" * (SMALL - 2)}] * records
    writes = [
        {"topic": TOPIC, "partition": partition, "records": written}
        for partition in range(partitions)
    ]
    request = _post(url, "/transactions", {"writes": writes}, **headers)
    # For a request with a batch its records count, for others the request.
    units = partitions * records if records > 1 else 1
    return Ask(requests=[request], units=units, proof=_COMMITTED)


def _post(url: str, path: str, body: object, **headers: str) -> bytes:
    encoded = json.dumps(body, separators=(",", ":")).encode()
    return encode_request(url, "POST", path, encoded, Content_Type=JSON_TYPE, **headers)


def _commits(url: str, pids: tuple[int, ...], *, is_read: bool) -> Contender:
    """Return a contender that writes one record and commits it, repeatedly; only commits are timed.

    If ``is_read``, a commit ends when readers can see the record.
    """

    async def turn(seconds: float) -> Turn:
        return await asyncio.to_thread(commit_for, url, seconds, is_read=is_read)

    name = transactions_rows.SESSION_READ if is_read else transactions_rows.SESSION_COMMITS
    return Contender(name=name, turn=turn, pids=pids)


def commit_for(
    url: str,
    seconds: float,
    *,
    is_read: bool,
    topic: str = TOPIC,
    name: str = TRANSACTIONAL_ID,
) -> Turn:
    """Write one record to partition 0 and commit it, repeatedly; a latency is that of a commit."""
    latencies_s: list[float] = []
    with closing(OneClient(url)) as client:
        ask = partial(_answer, client)
        begun = ask(_post(url, "/transactions:begin", {"transactional_id": name}))
        producer_id, epoch, timeout_ms = begun["transaction"].split(":")
        began_s = perf_counter()
        while not latencies_s or perf_counter() - began_s < seconds:
            written = ask(
                _post(
                    url,
                    f"/topics/{topic}/partitions/0",
                    {"records": [{"value": "x" * (SMALL - 2)}]},
                    Milena_Transaction=f"{producer_id}:{epoch}:{timeout_ms}",
                )
            )
            end_offset = written["offsets"][0]["offset"] + 1
            extent = {"topic": topic, "partition": 0, "end_offset": end_offset, "records": 1}
            until = "visible" if is_read else "committed"
            path = f"/transactions/{producer_id}/{epoch}:commit?until={until}"
            commit = _post(url, path, {"writes": [extent]})
            sent_s = perf_counter()
            ended = ask(commit)
            latencies_s.append(perf_counter() - sent_s)
            if ended["visible"] != is_read:
                raise HttpLoadError(f"it answered {ended}")
            epoch = ended["next_epoch"]
    return Turn(latencies_s=latencies_s, units=len(latencies_s), seconds=perf_counter() - began_s)


def _answer(client: OneClient, request: bytes) -> dict[str, Any]:
    """Return the JSON of the response."""
    answer = client.exchange(request, http_is_whole(Ask(requests=())))
    found: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return found
