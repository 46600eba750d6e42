"""Whatever fails in whatever order: what senders were told is true of the logs, nothing is doubled or reordered."""

import asyncio
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from milena.errors import ClientError, UnknownResultError
from milena.producing.options import ProducerOptions
from milena.producing.producer import Producer
from tests.support.fakes.scripted_cluster import ScriptedClock, ScriptedCluster, not_now

STEPS = st.sampled_from(["ok", "ok", "lost answer", "lost request", "not now"])


@settings(max_examples=150)
@given(
    scripts=st.lists(st.lists(STEPS, max_size=30), min_size=2, max_size=2),
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=60),
    bytes_max=st.sampled_from([450, 600, 1 << 20]),
    seed=st.integers(0, 1000),
)
def test_what_was_told_is_true(scripts, sizes, bytes_max, seed):
    asyncio.run(_check(scripts, sizes, bytes_max, seed))


async def _check(scripts, sizes, bytes_max, seed):
    cluster = ScriptedCluster(partitions=2)
    for partition, script in enumerate(scripts):
        log = cluster.logs[partition]
        log.bytes_max = bytes_max
        log.script = [not_now() if step == "not now" else step for step in script]
    options = ProducerOptions(
        linger_ms=0, batch_bytes=1024, buffer_bytes=4096, delivery_timeout_ms=400
    )
    producer = Producer(
        options,
        transport=cluster,
        metadata=cluster,
        clock=ScriptedClock(),
        chance=Random(seed),
    )
    values = [b"%06d" % n + b"x" * size for n, size in enumerate(sizes)]
    async with producer:
        deliveries = [
            await producer.send("t", value, partition=n % 2) for n, value in enumerate(values)
        ]
    for n, (value, delivery) in enumerate(zip(values, deliveries, strict=True)):
        written = cluster.logs[n % 2].values
        outcome = delivery.outcome
        if isinstance(outcome, UnknownResultError):
            assert written.count(value) <= 1
        elif isinstance(outcome, ClientError):
            assert value not in written
        else:
            assert written[outcome.offset] == value
            assert written.count(value) == 1
    for log in cluster.logs.values():
        assert log.values == sorted(log.values)
