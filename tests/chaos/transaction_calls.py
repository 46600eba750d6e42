"""The requests about transactions, and the meaning of their responses."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum, unique
from typing import Any

import aiohttp

from tests.chaos.adapter import (
    JSON_MEDIA,
    META_MEDIA,
    NETWORK_ERRORS,
    Adapter,
    ApiError,
    Receipt,
    Value,
)
from tests.chaos.history import Outcome

TopicPartition = tuple[str, int]
ABORTED, COMMITTED, CHANGED = 40926, 40927, 40928
"""Error codes: aborted; committed, and cannot be aborted; open, and its records differ from those of the commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One transaction that is written step by step."""

    producer_id: int
    producer_epoch: int
    header: str
    """The value of the header that its writes have."""

    def path(self, end: "End") -> str:
        """Return the path of the request that ends it."""
        return f"/transactions/{self.producer_id}/{self.producer_epoch}:{end}"


@unique
class End(StrEnum):
    """The requested end of a session."""

    COMMIT = "commit"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Ending:
    """A node's response about the end of a transaction. If ``is_settled``, ``outcome`` is final."""

    outcome: Outcome
    is_settled: bool
    error: str | None = None


class TransactionCalls:
    """Requests about transactions. A response may take ``timeout_s``; nodes get a slightly shorter timeout."""

    def __init__(self, adapter: Adapter, *, timeout_s: float) -> None:
        self._adapter = adapter
        self._timeout_s = timeout_s
        self._params = {"timeout_ms": str(int(timeout_s * 750))}

    async def transact(
        self,
        base: str,
        writes: Mapping[TopicPartition, Sequence[tuple[str, Value]]],
        *,
        idempotency_key: str | None,
    ) -> list[Receipt]:
        """Make all writes in one request; return one receipt per record, in their order."""
        body = {
            "writes": [
                {
                    "topic": topic,
                    "partition": partition,
                    "records": [{"key": key, "value": value} for key, value in records],
                }
                for (topic, partition), records in writes.items()
            ]
        }
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        status, answer, error = await self._post(base + "/transactions", body, headers)
        count = sum(map(len, writes.values()))
        if status == 200:
            told = [receipt for write in answer["writes"] for receipt in write["offsets"]]
            assert len(told) == count, answer
            return [Receipt(Outcome.OK, receipt["offset"]) for receipt in told]
        return [Receipt(_meaning(status), error=error)] * count

    async def begin(self, base: str, transactional_id: str, *, timeout_ms: int) -> Session | None:
        """Begin the id's next transaction; None if it is unknown whether it was begun."""
        body = {"transactional_id": transactional_id, "timeout_ms": timeout_ms}
        status, answer, _ = await self._post(base + "/transactions:begin", body)
        if status != 200:
            return None
        return Session(
            producer_id=answer["producer_id"],
            producer_epoch=answer["producer_epoch"],
            header=answer["transaction"],
        )

    async def end(
        self,
        base: str,
        session: Session,
        end: End,
        extents: Mapping[TopicPartition, tuple[int, int]],
        group: str | None = None,
        offsets: Mapping[TopicPartition, int] | None = None,
    ) -> Ending:
        """Commit or abort. ``extents`` has (end offset, records) by partition, ``offsets`` the group's new offsets."""
        body = {
            "writes": [
                {"topic": t, "partition": p, "end_offset": upto, "records": records}
                for (t, p), (upto, records) in extents.items()
            ],
            "offsets": [
                {"group": group, "topic": t, "partition": p, "next_offset": offset}
                for (t, p), offset in (offsets or {}).items()
            ],
        }
        told = body if end is End.COMMIT else {}
        status, answer, error = await self._post(base + session.path(end), told)
        code = answer.get("error_code") if isinstance(answer, dict) else None
        if status == 200:
            return Ending(Outcome.OK if end is End.COMMIT else Outcome.FAILED, is_settled=True)
        if code in (ABORTED, COMMITTED):
            return Ending(Outcome.OK if code == COMMITTED else Outcome.FAILED, True, error)
        return Ending(_meaning(status), False, error)

    async def position(self, base: str, group: str, place: TopicPartition) -> int | None:
        """Return the committed offset of a group; None if there is none.

        Raises:
            ApiError: the node did not return it.
        """
        topic, partition = place
        try:
            status, answer = await self._adapter.call(
                "GET", f"{base}/groups/{group}/offsets", self._timeout_s, params={"topic": topic}
            )
        except NETWORK_ERRORS as error:
            raise ApiError(f"{type(error).__name__} {error}") from error
        if status == 404:
            return None
        if status != 200:
            raise ApiError(f"HTTP {status} {str(answer)[:80]}")
        found = answer["offsets"].get(topic, {}).get(str(partition))
        return None if found is None else found["offset"]

    async def _post(
        self, url: str, body: object, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any, str | None]:
        """Return status, body and error. The status is 0 without a response, and -1 without a connection."""
        types = {"Content-Type": JSON_MEDIA, "Accept": META_MEDIA}
        is_begin = url.endswith(":begin")
        try:
            status, answer = await self._adapter.call(
                "POST",
                url,
                self._timeout_s,
                params={} if is_begin else self._params,
                headers={**types, **(headers or {})},
                data=json.dumps(body),
            )
        except aiohttp.ClientConnectorError as error:
            return -1, None, type(error).__name__
        except NETWORK_ERRORS as error:
            return 0, None, type(error).__name__
        code = answer.get("error_code") if isinstance(answer, dict) else None
        return status, answer, None if status == 200 else f"HTTP {status} {code}"


def _meaning(status: int) -> Outcome:
    """Return the outcome of an error: all except 504 promise no effect, now or later (docs/exactly-once.md)."""
    return Outcome.UNKNOWN if status in (0, 504) else Outcome.FAILED
