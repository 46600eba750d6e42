"""ApiVersions (18): what the interface offers. Every client asks this first.

If the client's version is not served, the response has the layout of version 0 with error 35 and the whole list, from
which the client chooses again. Source: KIP-35, KIP-511, KIP-584 (features).
"""

from collections.abc import Iterable
from functools import cache

from http_api.protocol.kafka_codes import KafkaCode
from node.kafka.apis.api import Api, Body, KafkaCall, KafkaServices, serves
from node.kafka.rights import PUBLIC
from node.kafka.wire import cold

KEY = 18
LAST = 4
FEATURES = {"group.version": 1, "transaction.version": 2}
"""The features that the cluster has, and their levels. Level 1 of groups: Kafka's consumer protocol (KIP-848). Level 2
of transactions: a new epoch of the client for each (KIP-890)."""
ABSENT_LEVEL_FROM = 4
"""The first version whose clients take 0 as the lowest level of a feature, which means that it may be absent."""


def api_versions(others: Iterable[Api]) -> Api:
    """Return the API that advertises these APIs, and itself."""
    served = list(others)

    @cache
    def encoded(code: KafkaCode, version: int) -> bytes:
        # Made once: a client that has not authenticated may ask again and again, and this takes half a millisecond.
        rows = [
            {"api_key": api.key, "min_version": api.first, "max_version": api.last}
            for api in sorted([*served, listed], key=lambda api: api.key)
        ]
        least = 0 if version >= ABSENT_LEVEL_FROM else 1
        fields = {
            "error_code": code,
            "api_keys": rows,
            "supported_features": [
                {"name": name, "min_version": least, "max_version": level}
                for name, level in FEATURES.items()
            ],
            "finalized_features_epoch": 0,
            "finalized_features": [
                {"name": name, "min_version_level": level, "max_version_level": level}
                for name, level in FEATURES.items()
            ],
        }
        return cold.encode(KEY, version, fields)

    @serves(KEY, "ApiVersions", versions=(0, LAST), access=PUBLIC)
    async def listed(services: KafkaServices, call: KafkaCall) -> Body:
        del services
        if not 0 <= call.version <= LAST:
            code = KafkaCode.UNSUPPORTED_VERSION
            call.note(code)
            return [encoded(code, 0)]
        call.message()
        return [encoded(KafkaCode.NONE, call.version)]

    return listed
