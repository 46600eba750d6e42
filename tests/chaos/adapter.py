"""The HTTP dialect of the cluster; no other module knows it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.chaos.history import Outcome

JSON_MEDIA = "application/vnd.kafka.json.v2+json"
META_MEDIA = "application/vnd.kafka.v2+json"
CONNECT_TIMEOUT_S = 1.0

NOT_JUDGED_BY_STATUS = frozenset({408, 429})
"""The only 4xx statuses after which the records may have been appended."""

Key = Any
Value = Any
"""Decoded JSON; a damaged record may have any value."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The client's knowledge about one record."""

    outcome: Outcome
    offset: int | None = None
    error: str | None = None


class ApiError(Exception):
    """A node gave no usable response."""


NETWORK_ERRORS = (aiohttp.ClientError, TimeoutError, OSError)


class Adapter:
    """The HTTP calls of one run; an asynchronous context manager."""

    def __init__(self, *, ready_path: str) -> None:
        self._ready_path = ready_path
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> "Adapter":
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def is_ready(self, base: str) -> bool:
        """Return whether the node serves requests."""
        try:
            status, _ = await self.call("GET", base + self._ready_path, 2.0)
        except NETWORK_ERRORS:
            return False
        return status < 300

    async def create_topic(
        self,
        base: str,
        name: str,
        *,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str],
    ) -> None:
        """Create the topic, or accept an existing one.

        Raises:
            ApiError: the topic does not exist.
        """
        try:
            _, clusters = await self.call("GET", f"{base}/v3/clusters", 5.0)
            cluster_id = clusters["data"][0]["cluster_id"]
            status, answer = await self.call(
                "POST",
                f"{base}/v3/clusters/{cluster_id}/topics",
                10.0,
                json={
                    "topic_name": name,
                    "partitions_count": partitions,
                    "replication_factor": replication_factor,
                    "configs": [{"name": k, "value": v} for k, v in configs.items()],
                },
            )
        except (*NETWORK_ERRORS, LookupError, TypeError) as error:
            raise ApiError(f"create topic: {error!r}") from error
        exists = status in (400, 409) and "exist" in json.dumps(answer).lower()
        if status >= 300 and not exists:
            raise ApiError(f"create topic: HTTP {status} {str(answer)[:200]}")

    async def leader(self, base: str, topic: str, partition: int) -> int | None:
        """Return the leader that this node knows; None if it knows none."""
        found = await self._partition(base, topic, partition)
        leader = found.get("leader")
        return leader if isinstance(leader, int) and leader >= 0 else None

    async def is_in_sync(self, base: str, topic: str, partition: int) -> bool:
        """Return whether every replica is in sync, as far as this node knows."""
        replicas = (await self._partition(base, topic, partition)).get("replicas", [])
        return bool(replicas) and all(replica.get("in_sync") for replica in replicas)

    async def _partition(self, base: str, topic: str, partition: int) -> dict[str, Any]:
        url = f"{base}/topics/{topic}/partitions/{partition}"
        try:
            status, found = await self.call("GET", url, 2.0, headers={"Accept": META_MEDIA})
        except NETWORK_ERRORS:
            return {}
        return found if status == 200 and isinstance(found, dict) else {}

    async def produce(
        self,
        base: str,
        topic: str,
        partition: int,
        records: Sequence[tuple[str, Value]],
        *,
        acks: str,
        timeout_s: float,
        idempotency_key: str | None,
        transaction: str | None = None,
    ) -> list[Receipt]:
        """Write (key, value) pairs; return one receipt each. ``transaction`` is the header that its start returned."""
        body = {"records": [{"key": k, "value": v, "partition": partition} for k, v in records]}
        headers = {"Content-Type": JSON_MEDIA, "Accept": META_MEDIA}
        if idempotency_key is not None:
            headers["Idempotency-Key"] = idempotency_key
        if transaction is not None:
            headers["Milena-Transaction"] = transaction
        try:
            status, answer = await self.call(
                "POST",
                f"{base}/topics/{topic}",
                timeout_s,
                params={"acks": acks},
                headers=headers,
                data=json.dumps(body),
            )
        except aiohttp.ClientConnectorError as error:  # never connected, so never sent
            return [Receipt(Outcome.FAILED, error=type(error).__name__)] * len(records)
        except NETWORK_ERRORS as error:
            return [Receipt(Outcome.UNKNOWN, error=type(error).__name__)] * len(records)
        return read_receipts(status, answer, len(records))

    async def fetch(
        self,
        base: str,
        topic: str,
        partition: int,
        offset: int,
        *,
        wait_ms: int,
        max_bytes: int,
        timeout_s: float,
        is_local: bool,
        is_uncommitted: bool = False,
    ) -> list[tuple[int, Key, Value]]:
        """Return (offset, key, value) of one page. Records below ``offset`` are kept, because they are a finding.

        Raises:
            ApiError: the node returned no page.
        """
        params = {"offset": str(offset), "timeout": str(wait_ms), "max_bytes": str(max_bytes)}
        if is_local:
            params["replica"] = "local"
        if is_uncommitted:
            params["isolation"] = "read_uncommitted"
        url = f"{base}/topics/{topic}/partitions/{partition}/records"
        try:
            status, page = await self.call(
                "GET", url, timeout_s, params=params, headers={"Accept": JSON_MEDIA}
            )
        except NETWORK_ERRORS as error:
            raise ApiError(f"{type(error).__name__} {error}") from error
        if status != 200 or not isinstance(page, list):
            raise ApiError(f"HTTP {status} {str(page)[:80]}")
        return [(record["offset"], record["key"], record["value"]) for record in page]

    async def call(
        self, method: str, url: str, timeout_s: float, **options: Any
    ) -> tuple[int, Any]:
        """Return the status and the body, decoded if it is JSON.

        Raises:
            NETWORK_ERRORS: there is no response.
        """
        limits = aiohttp.ClientTimeout(
            total=timeout_s, sock_connect=min(timeout_s, CONNECT_TIMEOUT_S)
        )
        async with self._session.request(method, url, timeout=limits, **options) as response:
            text = await response.text()
        try:
            return response.status, json.loads(text) if text else None
        except ValueError:
            return response.status, text


def read_receipts(status: int, answer: Any, count: int) -> list[Receipt]:
    """Return the receipts of all records in a response to a produce request."""
    receipts = answer.get("offsets", []) if isinstance(answer, dict) else []
    if status == 200 and len(receipts) == count:
        return [_receipt(r.get("error_code"), r.get("offset")) for r in receipts]
    code = answer.get("error_code") if isinstance(answer, dict) else None
    return [Receipt(_failure(code or status), error=f"HTTP {status} {code}")] * count


def _receipt(code: int | None, offset: Any) -> Receipt:
    if code:
        return Receipt(_failure(code), error=f"code {code}")
    is_offset = isinstance(offset, int) and offset >= 0
    return Receipt(Outcome.OK, offset if is_offset else None)


def _failure(code: int) -> Outcome:
    """Return the outcome of a failure. 4xx and 503 promise that nothing was appended; after others it is unknown.

    ``code`` is a status, or an error code of five digits that starts with the status.
    """
    status = code if code < 1000 else code // 100
    is_refused = 400 <= status < 500 and status not in NOT_JUDGED_BY_STATUS
    return Outcome.FAILED if is_refused or status == 503 else Outcome.UNKNOWN


def merge(earlier: Receipt, later: Receipt) -> Receipt:
    """Return the joint result of two attempts; one of unknown fate may take effect, whatever the other returned."""
    if later.outcome is Outcome.FAILED and earlier.outcome is Outcome.UNKNOWN:
        return Receipt(Outcome.UNKNOWN, error=f"{earlier.error}, then {later.error}")
    return later
