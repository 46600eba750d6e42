"""Words of quotas: whom one binds, and what it bounds. After Kafka's client quotas (KIP-546, KIP-612)."""

from enum import StrEnum

from milena.model.access import PRINCIPAL_NAME


class QuotaKey(StrEnum):
    """What a quota bounds. Rates are per second and node; all are whole numbers above 0."""

    REQUEST_RATE = "request_rate"
    PRODUCER_BYTE_RATE = "producer_byte_rate"
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    CONNECTION_COUNT = "connection_count"
    """Connections to one node."""
    STREAM_COUNT = "stream_count"
    """Answers without an end that one node sends at a time."""
    CONSUMER_COUNT = "consumer_count"
    """REST consumers in the cluster."""


EVERY = "*"
"""In the place of a user or client id: each that has no quota of its own. No name of either has a star."""
ANONYMOUS_USER = "ANONYMOUS"
"""Whose quota counts for callers that nobody asks who they are; each address has it for itself."""
CLIENT_ID = PRINCIPAL_NAME
"""What a program may call itself: a regular expression."""
CLIENT_ID_HEADER = "Milena-Client-Id"
"""How a program calls itself, as Kafka's ``client.id``: whoever it is may say what it likes."""
