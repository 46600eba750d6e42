"""Steps of Kafka clients: write, read, look up offsets, create topics, delete records, run transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.cimpl import NewTopic

from tests.judge.checks import Read
from tests.judge.client import Lost, Response
from tests.judge.model import Deletion, Fate, Partition, Sent, Topic, Transaction
from tests.judge.paths import kafka
from tests.judge.paths.kafka import CODECS, KAFKA_PATH, TIMEOUT_S, KafkaPath
from tests.judge.paths.write import Receipt
from tests.judge.steps import topics, writes

if TYPE_CHECKING:
    import random

    from tests.judge.world import World

_VISIBLE_S = 10.0
"""Seconds within which readers see the end of a transaction that was decided."""


def write(world: World, rng: random.Random) -> None:
    """Write batches of an idempotent producer, or of one that repeats nothing, in any codec; sometimes read them."""
    path = world.kafka
    if path is None:
        return
    topic = world.topic(rng)
    part = rng.choice(topic.partitions)
    codec, is_idempotent = rng.choice(CODECS), rng.random() < 0.6
    settings = {"enable.idempotence": True} if is_idempotent else {"retries": 0}
    producer = _producer(world, path, {**settings, "compression.type": codec})
    for _ in range(rng.choice((1, 1, 3))):
        records = KAFKA_PATH.some(rng, world.model, topic, part.number, rng.choice((1, 2, 5)))
        _send(world, producer, part, records, f"{codec} {is_idempotent=}")
    if rng.random() < 0.5:
        _read(world, rng, path, part, part.first(world.now))


def _producer(world: World, path: KafkaPath, settings: dict[str, object]) -> Producer:
    more = {"linger.ms": 5, "message.timeout.ms": int(TIMEOUT_S * 1000) - 5_000, **settings}
    return Producer(path.settings(is_closed=world.is_closed, **more))


def _send(
    world: World,
    producer: Producer,
    part: Partition,
    records: list[Sent],
    note: str,
    transaction: Transaction | None = None,
) -> bool:
    """Send records and update the model; return whether all of them were acknowledged."""
    world.model.begin(records, transaction)
    where = f"kafka produce {part.name} {note}"
    try:
        receipts = kafka.write(producer, records, part.number)
    except KafkaException as error:
        world.count(f"kafka {error.args[0].name()}")
        receipts = [Receipt(504)] * len(records)
    for sent, receipt in zip(records, receipts, strict=True):
        world.count(f"kafka produce {receipt.status} {receipt.code or ''}".rstrip())
        if receipt.status == 200:
            writes.acknowledge(world, sent, receipt, where)
        else:
            world.model.settle(sent, Fate.UNKNOWN)
    return all(receipt.status == 200 for receipt in receipts)


def read(world: World, rng: random.Random) -> None:
    """Read a partition from a random offset."""
    part = rng.choice(world.topic(rng).partitions)
    if world.kafka is not None:
        start = rng.randint(part.first(world.now), part.end_floor(world.now))
        _read(world, rng, world.kafka, part, start)


def read_whole(world: World, rng: random.Random, part: Partition) -> None:
    """Read a partition from its first offset to its end, while every node runs."""
    if world.kafka is not None:
        _read(world, rng, world.kafka, part, part.first(world.now), is_healed=True)


def _read(
    world: World,
    rng: random.Random,
    path: KafkaPath,
    part: Partition,
    start: int,
    *,
    is_healed: bool = False,
) -> None:
    is_uncommitted = rng.random() < 0.3
    level = "read_uncommitted" if is_uncommitted else "read_committed"
    more = {"isolation.level": level, "max.partition.fetch.bytes": rng.choice((1, 1 << 20))}
    with path.consumer(is_closed=world.is_closed, **more) as consumer:
        found = kafka.fetch(consumer, part.topic.name, part.number, start, lambda: world.now)
    world.count("kafka fetch " + ("lost" if found is None else "200"))
    if found is not None:
        where = f"kafka fetch {level} {part.name}"
        # As over HTTP, a node that cannot reach the others serves what it has.
        is_whole = found.is_whole and (is_healed or not world.is_stormy)
        rows, began = found.rows, found.began
        world.checker.read(
            Read(
                part,
                where,
                start,
                rows,
                began,
                world.now,
                is_whole,
                is_uncommitted=is_uncommitted,
            )
        )


def ends(world: World, rng: random.Random) -> None:
    """Look up the first and the end offset of a partition, and offsets by time."""
    path = world.kafka
    if path is None:
        return
    part = rng.choice(world.topic(rng).partitions)
    place = TopicPartition(part.topic.name, part.number)
    times = [sent.timestamp for sent in list(part.acked.values()) if sent.timestamp is not None]
    asked = rng.choice([*(at + rng.choice((-1, 0, 1)) for at in times[-5:]), 0, 1])
    began = world.now
    try:
        with path.consumer(
            is_closed=world.is_closed, **{"isolation.level": "read_uncommitted"}
        ) as consumer:
            begin, end = consumer.get_watermark_offsets(place, TIMEOUT_S, cached=False)
            timed = TopicPartition(part.topic.name, part.number, asked)
            (by_time,) = consumer.offsets_for_times([timed], TIMEOUT_S)
    except KafkaException as error:
        world.count(f"kafka list_offsets {error.args[0].name()}")
        return
    world.count("kafka list_offsets 200")
    where, ended = f"kafka list_offsets {part.name}", world.now
    with world.model.lock:
        floor = part.end_floor(began)
        world.check("J-end", end >= floor or world.is_stormy, where, f"an end from {floor}", end)
        sure, maybe = part.start_range(began, ended)
        world.check(
            "J-deleted", sure <= begin <= maybe, where, f"a beginning of {sure} to {maybe}", begin
        )
        shown = part.must_show(began, ended, 0, uncommitted=True)
        late = [o for o in shown if (part.acked[o].timestamp or 0) >= asked]
        if late and not world.is_stormy:
            is_right = 0 <= by_time.offset <= late[0]
            world.check("J-time", is_right, f"{where} at {asked}", f"{late[0]} or before", by_time)


def create(world: World, rng: random.Random) -> None:
    """Create a topic, which every node must know at once."""
    path = world.kafka
    if path is None:
        return
    name, count = f"{world.prefix}-{next(world.numbers)}", rng.choice((1, 2, 3))
    wanted = NewTopic(name, num_partitions=count)
    admin = path.admin(is_closed=world.is_closed)
    try:
        admin.create_topics([wanted], request_timeout=TIMEOUT_S)[name].result()
    except KafkaException as error:
        world.count(f"kafka create_topics {error.args[0].name()}")
        return
    world.count("kafka create_topics 200")
    topics.ask(world, rng, name, 200)
    if "is_prepared" in world.notes:
        world.notes.setdefault("created", []).append(name)
    world.model.create(name, count)


def delete_records(world: World, rng: random.Random) -> None:
    """Delete the oldest records of a partition."""
    path = world.kafka
    if path is None:
        return
    part = rng.choice(world.topic(rng).partitions)
    end = part.end_floor(world.now)
    before = rng.randint(0, end)
    deletion = Deletion(world.now, before)
    with world.model.lock:
        part.deletions.append(deletion)
    place = TopicPartition(part.topic.name, part.number, before)
    admin = path.admin(is_closed=world.is_closed)
    try:
        start = admin.delete_records([place], request_timeout=TIMEOUT_S)[place].result()
    except KafkaException as error:
        # Whether it took effect is unknown: the deletion stays open.
        world.count(f"kafka delete_records {error.args[0].name()}")
        return
    world.count("kafka delete_records 200")
    with world.model.lock:
        others = max((d.before for d in part.deletions if d is not deletion), default=0)
        told = start.low_watermark
        is_right = before <= told <= max(before, others)
        where = f"kafka delete_records {part.name} {before}"
        world.check("J-deleted", is_right, where, f"a beginning of {before}", told)
        deletion.before, deletion.ended = told, world.now
        world.notes.setdefault("deleted", []).append(part.topic.name)


def transaction(world: World, rng: random.Random) -> None:
    """Write to some partitions in a transaction; commit it, abort it, or let a second producer take over."""
    path = world.kafka
    if path is None:
        return
    name = f"{world.prefix}-kafka-{world.worker()}-{next(world.numbers)}"
    settings: dict[str, object] = {"transactional.id": name, "transaction.timeout.ms": 30_000}
    producer = _producer(world, path, settings)
    try:
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
    except KafkaException as error:
        world.count(f"kafka init_transactions {error.args[0].name()}")
        return
    tx = Transaction(name, world.now)
    is_sure = True
    for _ in range(rng.choice((1, 2, 3))):
        part = rng.choice(world.topic(rng).partitions)
        records = KAFKA_PATH.some(rng, world.model, part.topic, part.number, rng.choice((1, 3)))
        is_sure = _send(world, producer, part, records, f"within {name}", tx) and is_sure
    if rng.random() < 0.5:
        _read(world, rng, path, rng.choice(world.topic(rng).partitions), 0)
    draw = rng.random()
    if draw < 0.6:
        _commit(world, tx, producer, is_sure=is_sure)
    elif draw < 0.8:
        _abort(world, tx, producer)
    else:
        _take_over(world, path, tx, producer, settings)


def _commit(world: World, tx: Transaction, producer: Producer, *, is_sure: bool) -> None:
    tx.may_show = world.now
    try:
        producer.commit_transaction(TIMEOUT_S)
    except KafkaException as error:
        world.count(f"kafka commit {error.args[0].name()}")
        world.model.end(tx, Fate.UNKNOWN)
        return
    world.count("kafka commit 200")
    where = f"kafka commit of {tx.name}"
    world.check("J-tx-atomic", is_sure, where, "a refusal: a record was not acknowledged", "200")
    world.model.end(tx, Fate.ACKED, after_s=_VISIBLE_S)


def _abort(world: World, tx: Transaction, producer: Producer) -> None:
    try:
        producer.abort_transaction(TIMEOUT_S)
    except KafkaException as error:
        # No commit was requested, so it ends by its timeout at the latest.
        world.count(f"kafka abort {error.args[0].name()}")
        world.model.end(tx, Fate.REFUSED, after_s=60)
        return
    world.count("kafka abort 200")
    world.model.end(tx, Fate.REFUSED, after_s=_VISIBLE_S)


def _take_over(
    world: World,
    path: KafkaPath,
    tx: Transaction,
    producer: Producer,
    settings: dict[str, object],
) -> None:
    """Start a second producer with the same id: the first one's transaction is over, and it can commit nothing."""
    second = _producer(world, path, settings)
    try:
        second.init_transactions(TIMEOUT_S)
    except KafkaException as error:
        world.count(f"kafka take over {error.args[0].name()}")
        world.model.end(tx, Fate.REFUSED, after_s=60)
        return
    world.model.end(tx, Fate.REFUSED, after_s=_VISIBLE_S)
    try:
        producer.commit_transaction(TIMEOUT_S)
    except KafkaException as error:
        world.count(f"kafka former commit {error.args[0].name()}")
        told = str(error.args[0].name())
    else:
        told = "200"
    world.check("J-tx-fence", told != "200", f"kafka commit of {tx.name}", "a refusal", told)


def commit(
    world: World, path: KafkaPath, group: str, part: Partition, value: int
) -> Response | Lost:
    """Commit an offset of a group that has no members; return a response with 204 if it succeeded."""
    place = TopicPartition(part.topic.name, part.number, value)
    with path.consumer(is_closed=world.is_closed, **{"group.id": group}) as consumer:
        try:
            (told,) = consumer.commit(offsets=[place], asynchronous=False)
        except KafkaException as error:
            world.count(f"kafka commit of offsets {error.args[0].name()}")
            return Lost(f"kafka {error.args[0].name()}")
    if told.error is not None:
        return Lost(f"kafka {told.error.name()}")
    world.count("kafka commit of offsets 200")
    return Response(204, {}, b"", ended=world.now)


def committed(world: World, path: KafkaPath, group: str, topic: Topic) -> list[int | None] | None:
    """Return the committed offset of each partition; None without a response."""
    places = [TopicPartition(topic.name, part.number) for part in topic.partitions]
    with path.consumer(is_closed=world.is_closed, **{"group.id": group}) as consumer:
        try:
            told = consumer.committed(places, TIMEOUT_S)
        except KafkaException as error:
            world.count(f"kafka committed {error.args[0].name()}")
            return None
    if any(one.error is not None for one in told):
        return None
    world.count("kafka committed 200")
    return [one.offset if one.offset >= 0 else None for one in told]
