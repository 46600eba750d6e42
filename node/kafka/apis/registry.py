"""The table of all API keys that the interface serves. A group of keys is one module and one line here."""

from node.kafka.apis import (
    acls,
    client_quotas,
    cluster,
    configs,
    consumer_groups,
    fetch,
    group_offsets,
    group_views,
    groups,
    metadata,
    offsets,
    partitions,
    produce,
    producers,
    sasl,
    scram_credentials,
    topics,
    transaction_views,
    transactions,
)
from node.kafka.apis.api import Api
from node.kafka.apis.versions import api_versions

_SERVED: tuple[Api, ...] = (
    *produce.APIS,
    *fetch.APIS,
    *offsets.APIS,
    *metadata.APIS,
    *producers.APIS,
    *transactions.APIS,
    *transaction_views.APIS,
    *cluster.APIS,
    *configs.APIS,
    *partitions.APIS,
    *topics.APIS,
    *groups.APIS,
    *group_offsets.APIS,
    *group_views.APIS,
    *sasl.APIS,
    *scram_credentials.APIS,
    *acls.APIS,
    *client_quotas.APIS,
    *consumer_groups.APIS,
)

APIS: dict[int, Api] = {api.key: api for api in (*_SERVED, api_versions(_SERVED))}
"""Each API by its key."""
assert len(APIS) == len(_SERVED) + 1, "two modules serve the same key"
