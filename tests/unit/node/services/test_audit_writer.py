"""The audit topic: what was changed stands there once and in order, whoever dies; nobody else writes it."""

import asyncio
import json
from dataclasses import replace

import pytest

from http_api.access import on_behalf
from milena.model.errors import FateUnknownError, ForbiddenError
from node.metadata.audit_records import number_in
from node.services import audit_writer
from raft_meta.machine.access import audit
from raft_meta.machine.commands import DeleteUser, ForgetAudited, PutUser
from tests.support.clusters.nodes import Cluster, SimNode, cluster_of
from tests.support.time.virtual_time import virtual


async def put(node: SimNode, name: str, principal: str = "User:root") -> None:
    """Somebody makes a user, by this node."""
    asked = on_behalf.principal.set(principal)
    try:
        await node.metadata.propose(
            PutUser(name=name, version=0, verifiers=("hash",), is_superuser=False), timeout_ms=5_000
        )
    finally:
        on_behalf.principal.reset(asked)


async def written(cluster: Cluster) -> list[dict[str, object]]:
    """What the topic has, once nothing waits any more."""
    await cluster.until(lambda: not cluster.image.audited)
    return [json.loads(value) for value in await cluster.any.read(audit.TOPIC)]


async def with_topic(cluster: Cluster) -> None:
    await cluster.until(lambda: cluster.image.feature_level >= audit.LEVEL)
    await cluster.create(audit.TOPIC, (2, 3, 1), min_insync_replicas="2")


def numbers(entries: list[dict[str, object]]) -> list[object]:
    return [entry["number"] for entry in entries]


@virtual
async def test_each_change_stands_there_with_who_asked_for_it() -> None:
    async with cluster_of() as cluster:
        await with_topic(cluster)
        await put(cluster.nodes[2], "ann")
        await put(cluster.nodes[3], "bob", "User:ann")
        first, ann, bob = await written(cluster)
        level = cluster.image.audit_count - 2
        assert (first["number"], first["action"], first["principal"]) == (
            level,
            "create_topic",
            None,
        )
        assert (ann["number"], ann["principal"], ann["node_id"]) == (level + 1, "User:root", 2)
        assert ann["change"] == {
            "name": "ann",
            "is_new": True,
            "is_password_changed": True,
            "is_superuser": False,
        }
        assert (bob["number"], bob["principal"], bob["node_id"]) == (level + 2, "User:ann", 3)


@pytest.mark.parametrize("days", [2, -2, 400])
@virtual
async def test_a_change_with_a_time_from_a_wrong_clock_does_not_hold_up_the_next_ones(
    days: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that does not know the cluster's time yet goes by its own clock."""
    async with cluster_of() as cluster:
        await cluster.until(lambda: cluster.image.feature_level >= audit.LEVEL)
        configs = {
            "message_timestamp_before_max_ms": "3600000",
            "message_timestamp_after_max_ms": "3600000",
        }
        await cluster.create(audit.TOPIC, (2, 3, 1), **configs)
        asked = cluster.nodes[2]
        wrong_ms = cluster.image.now_ms + days * 86_400_000
        with monkeypatch.context() as patch:
            patch.setattr(asked.metadata, "_command_ms", lambda: wrong_ms)
            await put(asked, "ann")
        await put(asked, "bob")
        *_, ann, bob = await written(cluster)
        assert [entry["change"]["name"] for entry in (ann, bob)] == ["ann", "bob"]  # type: ignore[index]


@pytest.mark.parametrize("dies_after_ms", range(0, 40, 4))
@virtual
async def test_a_controller_that_dies_anywhere_loses_and_doubles_nothing(
    dies_after_ms: int,
) -> None:
    """Before a write, after it, before it was forgotten."""
    cluster = Cluster(seed=dies_after_ms, network_ms=lambda rng: rng.uniform(0, 4))
    async with cluster_of(cluster):
        await with_topic(cluster)
        controller = cluster.image.controller_id
        assert controller is not None
        other = next(node for number, node in cluster.nodes.items() if number != controller)
        for name in ("ann", "bob"):
            await put(other, name)
        await other.clock.sleep(dies_after_ms)
        await cluster.kill(controller)
        await cluster.until(lambda: cluster.image.controller_id in cluster.nodes)
        await put(other, "cid")
        found = numbers(await written(cluster))
        last = cluster.image.audit_count
        assert found == list(range(last - 3, last + 1))


@virtual
async def test_what_was_written_and_not_forgotten_is_not_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with cluster_of() as cluster:
        await with_topic(cluster)
        await written(cluster)
        controller = cluster.image.controller_id
        assert controller is not None
        node = cluster.nodes[controller]
        propose = node.metadata.propose
        stuck = asyncio.Event()

        async def never_forgets(command, **options):
            if isinstance(command, ForgetAudited):
                stuck.set()
                await asyncio.Event().wait()
            return await propose(command, **options)

        monkeypatch.setattr(node.metadata, "propose", never_forgets)
        other = next(found for found in cluster.nodes.values() if found is not node)
        await put(other, "ann")
        await stuck.wait()
        assert cluster.image.audited
        await cluster.kill(controller)
        await put(other, "bob")
        found = await written(cluster)
        assert [entry["action"] for entry in found] == ["create_topic", "put_user", "put_user"]


@virtual
async def test_a_last_record_that_cannot_be_read_yet_is_not_taken_for_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A new leader may know less of what is committed than the one that said where the log ends."""
    async with cluster_of() as cluster:
        await with_topic(cluster)
        await written(cluster)
        controller = cluster.image.controller_id
        assert controller is not None
        writer = cluster.nodes[controller].audit_writer
        propose, fetch = writer.node.metadata.propose, writer.fetch
        unlucky = ["forget", "fetch"]

        async def gets_no_answer(command, **options):
            if isinstance(command, ForgetAudited) and "forget" in unlucky:
                unlucky.remove("forget")
                raise FateUnknownError("no answer")
            return await propose(command, **options)

        async def finds_nothing(request):
            result = await fetch(request)
            if unlucky == ["fetch"]:
                unlucky.remove("fetch")
                return replace(result, batches=b"")
            return result

        monkeypatch.setattr(writer.node.metadata, "propose", gets_no_answer)
        monkeypatch.setattr(writer, "fetch", finds_nothing)
        await put(cluster.any, "ann")
        found = numbers(await written(cluster))
        assert not unlucky
        assert found == sorted(set(found))


@virtual
async def test_two_writers_write_it_once() -> None:
    async with cluster_of(Cluster(network_ms=lambda rng: rng.uniform(0, 5))) as cluster:
        await with_topic(cluster)
        for node in cluster.nodes.values():
            # Each takes itself for the controller's.
            node.audit_writer._has_work = lambda image: bool(image.audited)  # type: ignore[method-assign]
        for number in range(12):
            await put(cluster.nodes[1 + number % 3], f"user{number}")
        found = numbers(await written(cluster))
        last = cluster.image.audit_count
        assert found == list(range(last - 12, last + 1))


@virtual
async def test_nobody_else_writes_there() -> None:
    async with cluster_of() as cluster:
        await with_topic(cluster)
        for node in cluster.nodes.values():
            with pytest.raises(ForbiddenError, match="by the cluster alone"):
                await node.write(audit.TOPIC, "forged")
            with pytest.raises(ForbiddenError):
                await node.admin.topic_to_write(audit.TOPIC, may_create=True)
        assert len(await written(cluster)) == 1


@virtual
async def test_a_topic_that_cannot_be_written_is_written_later() -> None:
    async with cluster_of() as cluster:
        await with_topic(cluster)
        await written(cluster)
        controller = cluster.image.controller_id
        # Fewer than min.insync.replicas are left, and still a majority of the quorum.
        await cluster.create("t", (1, 2, 3))
        others = [number for number in cluster.nodes if number != controller]
        await cluster.any.admin.alter_configs(
            audit.TOPIC, {"min.insync.replicas": "3"}, is_validate_only=False
        )
        await cluster.kill(others[0])
        await put(cluster.nodes[others[1]], "ann")
        await cluster.nodes[others[1]].clock.sleep(5_000)
        assert cluster.image.audited
        await cluster.restart(others[0])
        actions = [entry["action"] for entry in await written(cluster)]
        assert actions == ["create_topic", "create_topic", "alter_configs", "put_user"]


@virtual
async def test_a_new_topic_goes_on_with_the_numbers() -> None:
    async with cluster_of() as cluster:
        await with_topic(cluster)
        await put(cluster.nodes[1], "ann")
        await written(cluster)
        await cluster.nodes[1].admin.delete_topic(audit.TOPIC)
        await cluster.nodes[1].metadata.propose(DeleteUser(name="ann"), timeout_ms=5_000)
        await with_topic(cluster)
        await put(cluster.nodes[1], "bob")
        last = cluster.image.audit_count
        assert numbers(await written(cluster)) == [last - 1, last]


def test_a_write_takes_one_at_least_and_no_more_than_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.unit.raft_meta.machine.test_audit import AuditedCluster  # noqa: PLC0415

    cluster = AuditedCluster()
    for number in range(5):
        cluster.user(f"user{number}")
    image = cluster.image

    def taken(after: int) -> list[int]:
        return [entry.number for entry in audit_writer.next_entries(image, after=after)]

    assert taken(0) == [1, 2, 3, 4, 5, 6]
    assert taken(4) == [5, 6]
    assert taken(6) == taken(9) == []
    monkeypatch.setattr(audit_writer, "RECORDS_MAX", 2)
    assert taken(1) == [2, 3]
    monkeypatch.setattr(audit_writer, "BYTES_MAX", 1)
    assert taken(1) == [2]


@pytest.mark.parametrize(
    ("value", "number"),
    [(b'{"number":7}', 7), (b"{}", 0), (b"[]", 0), (b"no", 0), (None, 0), (b'{"number":"7"}', 0)],
)
def test_a_record_of_somebody_else_has_no_number(value: bytes | None, number: int) -> None:
    assert number_in(value) == number
