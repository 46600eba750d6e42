"""DescribeConfigs responses, in every version, as kafka-python decodes them."""

import pytest
from kafka.protocol.admin import DescribeConfigsResponse

from node.kafka.wire import cold
from node.kafka.wire.configs import (
    FLEXIBLE_FROM,
    ConfigRow,
    ConfigSource,
    ConfigSynonym,
    ConfigType,
    ResourceRow,
    encode_response,
)

ROWS = [
    ResourceRow(3, "topic 'no' does not exist", 2, "no"),
    ResourceRow(
        0,
        None,
        2,
        "t",
        (
            ConfigRow(
                "retention.ms",
                "5",
                False,
                ConfigSource.DYNAMIC_TOPIC_CONFIG,
                (
                    ConfigSynonym("retention.ms", "5", ConfigSource.DYNAMIC_TOPIC_CONFIG),
                    ConfigSynonym("log.retention.ms", None, ConfigSource.DEFAULT_CONFIG),
                ),
                ConfigType.LONG,
                "How long \u2026",
            ),
            ConfigRow(
                "x" * 200, None, True, ConfigSource.DEFAULT_CONFIG, (), ConfigType.LIST, None
            ),
        ),
    ),
]


@pytest.mark.parametrize("version", range(1, 5))
def test_the_bytes_are_those_of_kafka_python(version: int) -> None:
    fields = {
        "results": [
            {
                "error_code": row.error_code,
                "error_message": row.error_message,
                "resource_type": row.resource_type,
                "resource_name": row.resource_name,
                "configs": [
                    {
                        "name": config.name,
                        "value": config.value,
                        "read_only": config.is_read_only,
                        "config_source": config.source,
                        "is_sensitive": False,
                        "synonyms": [synonym._asdict() for synonym in config.synonyms],
                        "config_type": config.kind,
                        "documentation": config.documentation,
                    }
                    for config in row.configs
                ],
            }
            for row in ROWS
        ]
    }
    data = b"".join(bytes(piece) for piece in encode_response(version, ROWS))
    assert data == cold.encode(32, version, fields)
    found = DescribeConfigsResponse.decode(data, version=version)
    assert [row.resource_name for row in found.results] == ["no", "t"]
    assert found.results[1].configs[0].synonyms[1].name == "log.retention.ms"


def test_the_first_flexible_version_is_that_of_the_definitions() -> None:
    assert cold.flexible_from(32) == FLEXIBLE_FROM
