"""Access of members to real nodes over HTTP; each call goes to a random node."""

import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import aiohttp

from tests.support.groups.members import Assigned, Beat, FencedError, RefusedError, UnknownError
from tests.support.groups.rest_members import GoneError

CONNECT_S = 1.0
ANSWER_S = 8.0
FENCED = frozenset({40411, 40925})
"""The error codes that mean that the sender is not a member any more."""
GROUP_NOT_FOUND = 40405
CONSUMER_NOT_FOUND = 40403
CONSUMER_EXISTS = 40902
FETCH_BYTES = 1 << 16
REST_WAIT_MS = 200


class HttpCalls:
    """Calls about one group and one topic of a cluster."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        urls: Sequence[str],
        *,
        group: str,
        topic: str,
        rng: Random,
    ) -> None:
        self._session = session
        self._urls = urls
        self._rng = rng
        self.group = group
        self.topic = topic

    async def _call(
        self,
        line: str,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        *,
        answer_s: float = ANSWER_S,
    ) -> Any:
        """Return the JSON of a successful response; None without a body.

        Raises:
            FencedError, GoneError, RefusedError: the request certainly had no effect.
            UnknownError: the result is unknown.
        """
        method, path = line.split(" ")
        limits = aiohttp.ClientTimeout(total=answer_s, sock_connect=CONNECT_S)
        url = self._rng.choice(self._urls) + path
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        try:
            async with self._session.request(
                method, url, params=query, data=data, headers=headers, timeout=limits
            ) as response:
                text, status = await response.text(), response.status
        except aiohttp.ClientConnectorError as error:
            raise RefusedError(str(error)) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise UnknownError(f"{type(error).__name__} {error}") from error
        if status < 300:
            return json.loads(text) if text else None
        raise error_of(status, text)

    async def committed(self) -> dict[int, int]:
        """Return the committed offset of each partition."""
        try:
            found = await self._call(
                f"GET /groups/{self.group}/offsets", query={"topic": self.topic}
            )
        except NoGroupError:
            return {}
        of_topic = found["offsets"].get(self.topic, {})
        return {int(partition): committed["offset"] for partition, committed in of_topic.items()}


class NoGroupError(RefusedError):
    """The group has no commit and no member yet."""


def error_of(status: int, text: str) -> Exception:
    """Return the error that a refusal means to a member."""
    try:
        code = json.loads(text)["error_code"]
    except (ValueError, LookupError, TypeError):
        code = status
    said = f"HTTP {status} {text[:200]}"
    if code in FENCED:
        return FencedError(said)
    if code == GROUP_NOT_FOUND:
        return NoGroupError(said)
    if code == CONSUMER_NOT_FOUND:
        return GoneError(said)
    is_refused = 400 <= status < 500 or status == 503
    return RefusedError(said) if is_refused else UnknownError(said)


class HttpGroupApi(HttpCalls):
    """An implementation of ``GroupApi``."""

    assignor = "sticky"
    session_ms = 3_000

    async def heartbeat(self, beat: Beat) -> Assigned:
        """Join, stay or leave."""
        body: dict[str, Any] = {
            "member_id": beat.member,
            "member_epoch": beat.epoch,
            "owned": [{"topic": self.topic, "partitions": sorted(beat.owned)}]
            if beat.owned
            else [],
        }
        if beat.epoch == 0:
            body |= {
                "topics": [self.topic],
                "assignor": self.assignor,
                "session_timeout_ms": self.session_ms,
                "rebalance_timeout_ms": 2 * self.session_ms,
            }
        query = {"timeout_ms": str(beat.wait_ms)} if beat.wait_ms else None
        found = await self._call(f"POST /groups/{self.group}/heartbeat", body, query)
        return Assigned(
            epoch=found["member_epoch"],
            generation=found["generation"],
            interval_ms=found["heartbeat_interval_ms"],
            assignment=self._partitions(found["assignment"]),
            pending=self._partitions(found["pending"]),
        )

    def _partitions(self, found: Sequence[Mapping[str, Any]]) -> frozenset[int]:
        return frozenset(number for item in found for number in item["partitions"])

    async def commit(self, member: str, epoch: int, offsets: dict[int, int]) -> None:
        """Commit offsets as a member."""
        body = {
            "member_id": member,
            "member_epoch": epoch,
            "offsets": [
                {"topic": self.topic, "partition": partition, "offset": offset}
                for partition, offset in sorted(offsets.items())
            ],
        }
        await self._call(f"POST /groups/{self.group}/offsets", body)

    async def fetch(self, partition: int, offset: int) -> list[str]:
        """Return records from any replica."""
        query = {"offset": str(offset), "timeout": "0", "max_bytes": str(FETCH_BYTES)}
        page = await self._call(
            f"GET /topics/{self.topic}/partitions/{partition}/records", query=query
        )
        return [json.dumps(record["value"]) for record in page if record["offset"] >= offset]


class HttpRestApi(HttpCalls):
    """An implementation of ``RestApi``."""

    def _at(self, name: str, what: str = "") -> str:
        return f"/consumers/{self.group}/instances/{name}{what}"

    async def create(self, name: str) -> None:
        """Create the consumer, or accept an existing one."""
        body = {
            "name": name,
            "format": "json",
            "auto.offset.reset": "earliest",
            "auto.commit.enable": False,
        }
        try:
            await self._call(f"POST /consumers/{self.group}", body)
        except RefusedError as error:
            if str(CONSUMER_EXISTS) not in str(error):
                raise

    async def subscribe(self, name: str) -> None:
        """Subscribe to the topic."""
        await self._call(f"POST {self._at(name, '/subscription')}", {"topics": [self.topic]})

    async def delete(self, name: str) -> None:
        """Delete the consumer."""
        await self._call(f"DELETE {self._at(name)}")

    async def records(self, name: str) -> list[tuple[int, int, str]]:
        """Return the next records."""
        query = {"timeout": str(REST_WAIT_MS), "max_bytes": str(FETCH_BYTES)}
        page = await self._call(f"GET {self._at(name, '/records')}", query=query)
        return [(r["partition"], r["offset"], json.dumps(r["value"])) for r in page]

    async def assignments(self, name: str) -> frozenset[int]:
        """Return the partitions that it reads from."""
        found = await self._call(f"GET {self._at(name, '/assignments')}")
        return frozenset(place["partition"] for place in found["partitions"])

    async def seek(self, name: str, offsets: dict[int, int]) -> None:
        """Set the positions."""
        await self._call(f"POST {self._at(name, '/positions')}", {"offsets": self._places(offsets)})

    async def commit(self, name: str) -> None:
        """Commit the delivered records."""
        await self._call(f"POST {self._at(name, '/offsets')}")

    def _places(self, offsets: dict[int, int]) -> list[dict[str, Any]]:
        return [
            {"topic": self.topic, "partition": partition, "offset": offset}
            for partition, offset in sorted(offsets.items())
        ]
