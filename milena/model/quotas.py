"""Terms of quotas: their owners, and the limited quantities. After Kafka's client quotas (KIP-546, KIP-612)."""

from enum import StrEnum

from milena.model.access import PRINCIPAL_NAME


class QuotaKey(StrEnum):
    """The quantity that a quota limits. Rates are per second and node; all values are whole numbers above 0."""

    REQUEST_RATE = "request_rate"
    PRODUCER_BYTE_RATE = "producer_byte_rate"
    CONSUMER_BYTE_RATE = "consumer_byte_rate"
    CONNECTION_COUNT = "connection_count"
    """Connections to one node."""
    STREAM_COUNT = "stream_count"
    """Endless responses that one node sends at a time."""
    CONSUMER_COUNT = "consumer_count"
    """REST consumers in the cluster."""


EVERY = "*"
"""Stands for every user or client id without a quota of its own. No name of either contains a star."""
ANONYMOUS_USER = "ANONYMOUS"
"""The user whose quota applies to callers without credentials. Each address has this quota for itself."""
CLIENT_ID = PRINCIPAL_NAME
"""Regular expression of a client id, the name that a program gives itself."""
CLIENT_ID_HEADER = "Milena-Client-Id"
"""Header with the client id, like Kafka's ``client.id``; nodes do not verify it."""
