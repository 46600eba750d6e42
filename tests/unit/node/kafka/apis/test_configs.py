"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs: what is in force, and what may be changed."""

from typing import Any

import pytest

from node.kafka.apis import configs
from raft_meta.machine.topics.configs import BROKER_NAMES, KEYS, effective
from tests.support.clusters.kafka_clients import KafkaClient, client_of
from tests.support.clusters.nodes import Cluster, cluster_of
from tests.support.time.virtual_time import virtual

NONE, UNKNOWN, BAD_CONFIG, BAD_REQUEST = 0, 3, 40, 42
TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
DYNAMIC, STATIC, DEFAULT = 1, 4, 5


def resource(name: str, kind: int = TOPIC, keys: list[str] | None = None) -> dict[str, Any]:
    return {"resource_type": kind, "resource_name": name, "configuration_keys": keys}


async def describe(
    client: KafkaClient, *wanted: dict[str, Any], version: int = 4, **flags: bool
) -> list[Any]:
    found: list[Any] = (await client.call(32, version, resources=list(wanted), **flags)).results
    return found


def set_on(cluster: Cluster, topic: str) -> dict[str, str]:
    found = cluster.image.topic(topic)
    assert found is not None
    return dict(found.configs)


class TestDescribe:
    @pytest.mark.parametrize("version", range(1, 5))
    @virtual
    async def test_a_topic_shows_every_config_with_its_default_and_source(
        self, version: int
    ) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3), retention_ms="5")
            (row,) = await describe(client_of(cluster.nodes[1]), resource("t"), version=version)
            assert (row.error_code, row.resource_type, row.resource_name) == (NONE, TOPIC, "t")
            topic = cluster.image.topic("t")
            assert topic is not None
            assert {c.name: c.value for c in row.configs} == {
                c.name: c.value for c in effective(topic).values()
            }
            sources = {c.name: c.config_source for c in row.configs}
            assert sources == dict.fromkeys(KEYS, DEFAULT) | {"retention.ms": DYNAMIC}
            assert not any(c.read_only or c.is_sensitive or c.synonyms for c in row.configs)
            if version >= 3:
                kinds = {c.name: c.config_type for c in row.configs}
                assert kinds["retention.ms"] == 5
                assert kinds["cleanup.policy"] == 7
                assert kinds["unclean.leader.election.enable"] == 1
                assert kinds["min.cleanable.dirty.ratio"] == 6
                assert all(c.documentation is None for c in row.configs)

    @virtual
    async def test_a_config_of_kafka_without_effect_is_kept_and_shown(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3), file_delete_delay_ms="10000")
            client = client_of(cluster.nodes[1])
            (row,) = await describe(client, resource("t", keys=["file.delete.delay.ms"]))
            found = [(c.name, c.value, c.config_source) for c in row.configs]
            assert found == [("file.delete.delay.ms", "10000", DYNAMIC)]

    @virtual
    async def test_synonyms_and_documentation_come_if_they_are_asked_for(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3), retention_ms="5")
            wanted = resource("t", keys=["retention.ms", "segment.ms", "no.such"])
            (row,) = await describe(
                client_of(cluster.nodes[1]),
                wanted,
                include_synonyms=True,
                include_documentation=True,
            )
            found = {c.name: [(s.name, s.value, s.source) for s in c.synonyms] for c in row.configs}
            assert found == {
                "retention.ms": [
                    ("retention.ms", "5", DYNAMIC),
                    ("log.retention.ms", "604800000", DEFAULT),
                ],
                "segment.ms": [("log.roll.ms", "604800000", DEFAULT)],
            }
            assert {c.name: c.documentation for c in row.configs} == {
                name: KEYS[name].doc for name in ("retention.ms", "segment.ms")
            }
            (row,) = await describe(client_of(cluster.nodes[1]), resource("t", keys=[]))
            assert len(row.configs) == len(KEYS)

    @virtual
    async def test_a_broker_shows_its_own_configs_which_are_read_only(self) -> None:
        async with cluster_of() as cluster:
            (row,) = await describe(
                client_of(cluster.nodes[2]), resource("2", BROKER), include_synonyms=True
            )
            assert (row.error_code, row.resource_type) == (NONE, BROKER)
            found = {c.name: (c.value, c.config_source) for c in row.configs}
            assert list(found) == sorted(found)
            assert set(BROKER_NAMES.values()) <= set(found)
            assert found["log.retention.ms"] == ("604800000", DEFAULT)
            assert found["advertised.listeners"] == ("PLAINTEXT://127.0.0.1:9092", STATIC)
            assert found["broker.id"] == ("2", STATIC)
            assert found["broker.rack"] == (None, STATIC)
            assert found["auto.create.topics.enable"] == ("true", STATIC)
            assert found["default.replication.factor"] == ("3", STATIC)
            assert found["num.partitions"] == ("1", STATIC)
            assert all(
                c.read_only and not c.is_sensitive and len(c.synonyms) == 1 for c in row.configs
            )

    @virtual
    async def test_the_configs_of_all_brokers_are_not_set(self) -> None:
        async with cluster_of() as cluster:
            (row,) = await describe(client_of(cluster.nodes[2]), resource("", BROKER))
            assert (row.error_code, row.configs) == (NONE, [])

    @virtual
    async def test_each_resource_fails_by_itself(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            wanted = [
                resource("no"),
                resource("t", keys=["flush.ms"]),
                resource("\u2028" * 10_000),
                *(resource(name, BROKER) for name in ("1", "9", "x", "2 ", "9" * 30_000)),
                *(resource("t", kind) for kind in (0, 1, 3, 8, 16, 32, 127, -128)),
                resource("t", keys=["flush.ms"]),
            ]
            for version in (1, 4):
                rows = await describe(client_of(cluster.nodes[2]), *wanted, version=version)
                codes = [row.error_code for row in rows]
                assert codes == [UNKNOWN, NONE, UNKNOWN, *[BAD_REQUEST] * 13, NONE]
                assert [row.resource_name for row in rows] == [w["resource_name"] for w in wanted]
                assert all(len(row.error_message or "") <= 2_000 for row in rows)
            assert "send the request to that broker" in rows[3].error_message

    @virtual
    async def test_a_response_has_a_bounded_number_of_configs(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(configs, "ROWS_MAX", 2 * len(KEYS) + 2)
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            rows = await describe(client_of(cluster.nodes[1]), *[resource("t")] * 3)
            assert [(row.error_code, len(row.configs)) for row in rows] == [
                (NONE, len(KEYS)),
                (NONE, len(KEYS)),
                (BAD_REQUEST, 0),
            ]


class TestAlter:
    @pytest.mark.parametrize("version", range(3))
    @virtual
    async def test_a_topic_has_the_named_configs_and_no_others(self, version: int) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3), retention_ms="5", flush_ms="7")
            client = client_of(cluster.nodes[1])
            wanted = {
                "resource_type": TOPIC,
                "resource_name": "t",
                "configs": [
                    {"name": "retention.ms", "value": "6"},
                    {"name": "segment.ms", "value": "8"},
                ],
            }
            found = await client.call(33, version, resources=[wanted], validate_only=True)
            assert found.responses[0].error_code == NONE
            assert set_on(cluster, "t") == {"retention.ms": "5", "flush.ms": "7"}
            (row,) = (await client.call(33, version, resources=[wanted])).responses
            assert (row.error_code, row.resource_type, row.resource_name) == (NONE, TOPIC, "t")
            assert set_on(cluster, "t") == {"retention.ms": "6", "segment.ms": "8"}
            wanted["configs"] = []
            await client.call(33, version, resources=[wanted])
            assert set_on(cluster, "t") == {}

    @virtual
    async def test_each_resource_fails_by_itself(self) -> None:
        async with cluster_of() as cluster:
            for name in ("a", "b", "c", "d", "e"):
                await cluster.create(name, (1, 2, 3), flush_ms="7")

            def change(
                name: str, *pairs: tuple[str, str | None], kind: int = TOPIC
            ) -> dict[str, Any]:
                made = [{"name": key, "value": value} for key, value in pairs]
                return {"resource_type": kind, "resource_name": name, "configs": made}

            wanted = [
                change("a", ("retention.ms", "1")),
                change("b", ("retention.ms", None)),
                change("c", ("no.such", "1")),
                change("d", ("retention.ms", "1"), ("retention.ms", "2")),
                change("e", ("retention.ms", "1")),
                change("e", ("retention.ms", "2")),
                change("no", ("retention.ms", "1")),
                change("", ("retention.ms", "1")),
                change("1", ("log.retention.ms", "1"), kind=BROKER),
                change("", kind=BROKER),
                change("a", kind=127),
                change("a", kind=-128),
            ]
            found = await client_of(cluster.nodes[1]).call(33, 2, resources=wanted)
            assert [row.error_code for row in found.responses] == [
                NONE,
                BAD_REQUEST,
                BAD_CONFIG,
                BAD_REQUEST,
                BAD_REQUEST,
                BAD_REQUEST,
                UNKNOWN,
                UNKNOWN,
                *[BAD_REQUEST] * 4,
            ]
            assert set_on(cluster, "a") == {"retention.ms": "1"}
            assert all(set_on(cluster, name) == {"flush.ms": "7"} for name in "bcde")
            assert "start it again" in found.responses[8].error_message


class TestIncrementalAlter:
    @staticmethod
    async def change(
        cluster: Cluster,
        *changes: tuple[str, int, str | None],
        version: int = 1,
        topic: str = "t",
        **flags: bool,
    ) -> tuple[int, str | None]:
        made = [
            {"name": name, "config_operation": op, "value": value} for name, op, value in changes
        ]
        wanted = {"resource_type": TOPIC, "resource_name": topic, "configs": made}
        found = await client_of(cluster.nodes[1]).call(44, version, resources=[wanted], **flags)
        (row,) = found.responses
        return row.error_code, row.error_message

    @pytest.mark.parametrize("version", range(2))
    @virtual
    async def test_configs_are_set_and_reset_one_by_one(self, version: int) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3), retention_ms="5", flush_ms="7")
            changes = (("retention.ms", DELETE, None), ("segment.ms", SET, "8"))
            found = await self.change(cluster, *changes, version=version, validate_only=True)
            assert found == (NONE, None)
            assert set_on(cluster, "t") == {"retention.ms": "5", "flush.ms": "7"}
            assert await self.change(cluster, *changes, version=version) == (NONE, None)
            assert set_on(cluster, "t") == {"flush.ms": "7", "segment.ms": "8"}

    @virtual
    async def test_items_are_appended_to_lists_and_subtracted(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            policy = "cleanup.policy"
            for operation, value, after in (
                (APPEND, "compact", "compact,delete"),
                (APPEND, " Compact , delete,", "compact,delete"),
                (SUBTRACT, "delete", "compact"),
                (SUBTRACT, "delete", "compact"),
                (APPEND, "delete", "compact,delete"),
                (SUBTRACT, "compact", "delete"),
            ):
                assert await self.change(cluster, (policy, operation, value)) == (NONE, None)
                assert set_on(cluster, "t") == {policy: after}
            code, message = await self.change(cluster, (policy, SUBTRACT, "delete"))
            assert (code, set_on(cluster, "t")) == (BAD_CONFIG, {policy: "delete"})
            assert message is not None
            assert "cleanup.policy must be one of" in message

    @virtual
    async def test_what_cannot_be_changed_so_is_refused(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            for changes, code in (
                ([("retention.ms", APPEND, "1")], BAD_CONFIG),
                ([("retention.ms", SUBTRACT, "1")], BAD_CONFIG),
                ([("cleanup.policy", APPEND, "shred")], BAD_CONFIG),
                ([("cleanup.policy", APPEND, None)], BAD_REQUEST),
                ([("retention.ms", SET, None)], BAD_REQUEST),
                ([("retention.ms", SET, "")], BAD_CONFIG),
                ([("no.such", SET, "1")], BAD_CONFIG),
                ([("no.such", APPEND, "1")], BAD_CONFIG),
                ([("no.such", DELETE, None)], BAD_CONFIG),
                ([("retention.ms", SET, "1"), ("no.such", SET, "1")], BAD_CONFIG),
                ([("retention.ms", SET, "1"), ("retention.ms", DELETE, None)], BAD_REQUEST),
                *(
                    ([("retention.ms", operation, "1")], BAD_REQUEST)
                    for operation in (-128, -1, 4, 127)
                ),
            ):
                found, message = await self.change(cluster, *changes)
                assert (found, set_on(cluster, "t")) == (code, {}), changes
                assert message
            assert (await self.change(cluster, topic="no"))[0] == UNKNOWN
            assert (await self.change(cluster))[0] == NONE

    @virtual
    async def test_deleting_a_config_that_is_not_set_is_no_error(self) -> None:
        async with cluster_of() as cluster:
            await cluster.create("t", (1, 2, 3))
            assert await self.change(cluster, ("retention.ms", DELETE, "ignored")) == (NONE, None)


@virtual
async def test_topics_and_brokers_are_listed() -> None:
    async with cluster_of() as cluster:
        await cluster.create("b", (1, 2, 3))
        await cluster.create("a", (1, 2, 3))
        client = client_of(cluster.nodes[1])

        async def listed(*types: int) -> list[tuple[int, str]]:
            found = await client.call(74, 1, resource_types=list(types))
            assert found.error_code == NONE
            return [(row.resource_type, row.resource_name) for row in found.config_resources]

        topics = [(TOPIC, "a"), (TOPIC, "b")]
        brokers = [(BROKER, "1"), (BROKER, "2"), (BROKER, "3")]
        assert await listed() == [*topics, *brokers]
        assert await listed(TOPIC) == topics
        assert await listed(BROKER, TOPIC, BROKER) == [*topics, *brokers]
        assert await listed(8, 16, 32) == []
        # Version 0 asks for client metrics, of which there are none.
        assert (await client.call(74, 0)).config_resources == []
        for odd in (-128, 0, 3, 127):
            found = await client.call(74, 1, resource_types=[TOPIC, odd])
            assert (found.error_code, found.config_resources) == (35, [])
