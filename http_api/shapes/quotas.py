"""Requests and responses about quotas."""

from http_api.shapes.blocks import (
    Optional,
    answer,
    count,
    integer,
    listing,
    nullable,
    optionals,
    request,
    text,
)
from milena.model.quotas import EVERY, QuotaKey

_WHAT = {
    QuotaKey.REQUEST_RATE: "requests/s to each node",
    QuotaKey.PRODUCER_BYTE_RATE: "bytes/s sent to each node",
    QuotaKey.CONSUMER_BYTE_RATE: "bytes/s that each node sends",
    QuotaKey.CONNECTION_COUNT: "connections to each node",
    QuotaKey.STREAM_COUNT: "streams of each node",
    QuotaKey.CONSUMER_COUNT: "REST consumers of the cluster",
}
_USER = nullable(text(f"whose; `{EVERY}`: each that has none of its own; absent: every caller"))
_CLIENT_ID = nullable(text(f"of which programs; `{EVERY}`: each that has none of its own"))

LIMITS = request(
    "QuotaLimits",
    {"producer_byte_rate": 1_000_000},
    **optionals({key.value: nullable(integer(what, minimum=1)) for key, what in _WHAT.items()}),
)
QUOTA = answer("Quota", user=_USER, client_id=_CLIENT_ID, limits=LIMITS)
QUOTAS = answer("Quotas", total=count("of all"), quotas=listing(QUOTA, "those of the page"))
QUOTA_CHANGE = request(
    "QuotaChangeIn",
    {"user": "shop", "limits": {"producer_byte_rate": 1_000_000}},
    limits=LIMITS,
    user=Optional(_USER),
    client_id=Optional(_CLIENT_ID),
)
