"""The codecs that a topic's config asks for."""

import pytest
from immutables import Map

from milena.model.types import Codec, WallMs
from node.metadata.topic_settings import record_codec, stored_codec, topic_settings
from raft_meta.machine.image import Topic


@pytest.mark.parametrize(
    ("compression_type", "encoded", "stored", "of_kafka"),
    [
        ("producer", Codec.NONE, None, None),
        ("uncompressed", Codec.NONE, Codec.NONE, Codec.NONE),
        ("gzip", Codec.GZIP, Codec.GZIP, Codec.GZIP),
        ("snappy", Codec.LZ4, Codec.LZ4, Codec.SNAPPY),
        ("lz4", Codec.LZ4, Codec.LZ4, Codec.LZ4),
        ("zstd", Codec.ZSTD, Codec.ZSTD, Codec.ZSTD),
    ],
)
def test_columns_have_no_snappy_and_batches_of_kafka_clients_do(
    compression_type: str, encoded: Codec, stored: Codec | None, of_kafka: Codec | None
) -> None:
    topic = Topic(
        topic_id=f"codec-{compression_type}",
        name="t",
        partition_count=1,
        replication_factor=1,
        configs=Map({"compression.type": compression_type}),
        created_ms=WallMs(0),
    )
    settings = topic_settings(topic)
    assert record_codec(settings) is encoded
    assert stored_codec(settings) is stored
    assert stored_codec(settings, is_v2=True) is of_kafka
