"""v2: a stream of the records of a whole topic, from any node, as lines or events.

Each partition has a source, and pieces are sent as they arrive. So the records of a partition are in order, and there
is no order between partitions. A position in the stream has the next offset of each partition: ``0:12,1:40``. It is the
id of each event, which browsers send back when they reconnect, and a valid value of ``offset``.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from aiohttp import web

from http_api.describing.params import Param, ParamPlace
from http_api.describing.schemas import integer_text, parse_query
from http_api.protocol.media import RecordFormat, StreamFraming, framing_type
from http_api.records.topic_tags import EXAMPLE, PATTERN, split, tag_of, tagged
from http_api.serving.call import Call
from http_api.serving.lookup import no_such_partition
from http_api.serving.places import PIECE_BYTES
from http_api.shapes.blocks import text
from http_api.streaming.answer import stream_answer
from http_api.v2.fetch import (
    COUNT,
    FOLLOW,
    FORMAT,
    ISOLATION,
    MISSING_ON_FETCH,
    TIMESTAMP,
    read_timestamp,
)
from http_api.v2.record_source import Piece, RecordSource
from milena.model.errors import MalformedRequestError
from milena.model.requests import FetchRequest

PARTITIONS_MAX = 100
"""The most partitions of a topic that is read in this way. Each costs as much as a stream, and makes ids longer."""

_PLACES = "[0-9]{1,9}:[0-9]{1,19}(,[0-9]{1,9}:[0-9]{1,19})*"
_EARLIEST, _LATEST = "earliest", "latest"

OFFSET = Param(
    "offset",
    "`earliest`, `latest`, -N for the last N records of each partition, or the first offsets by partition, "
    "`0:12,1:40`; a partition that is left out begins at its first record",
    text(pattern=rf"^(earliest|latest|-[0-9]{{1,19}}|({PATTERN}\.)?{_PLACES})$", default=_EARLIEST),
)
LAST_EVENT_ID = Param(
    name="Last-Event-ID",
    place=ParamPlace.HEADER,
    description="go on behind this event; wins over `offset` and `timestamp`",
    schema=text(pattern=rf"^{PATTERN}\.{_PLACES}$"),
    example=f"{EXAMPLE}.0:12,1:40",
)

Places = Mapping[int, int]
"""Next offset to read by partition number."""


class Beginning(NamedTuple):
    """Where to begin: at ``places`` in their partitions, and at ``offset`` in all others.

    ``topic_tag`` is the tag of the topic that must be read; empty: any topic of this name.
    """

    offset: int | str
    places: Places = MappingProxyType({})
    topic_tag: str = ""


def parse_beginning(given: str) -> Beginning:
    """Parse the parameter ``offset``.

    Raises:
        MalformedRequestError: the value is neither a word, nor -N, nor a position such as ``0:12,1:40``.
    """
    if given in (_EARLIEST, _LATEST):
        return Beginning(given)
    if given.startswith("-") and given[1:].isdigit():
        return Beginning(integer_text(OFFSET.name, given))
    tag, rest = split(given)
    places = _places(OFFSET.name, rest)
    if places is None:
        raise MalformedRequestError(
            f"Invalid parameter 'offset' got '{given}': give {_EARLIEST}, {_LATEST}, -N, "
            "or offsets by partition as 0:12,1:40"
        )
    return Beginning(_EARLIEST, places, tag)


def parse_last_id(given: str) -> Beginning:
    """Parse the header ``Last-Event-ID``.

    Raises:
        MalformedRequestError: the id has another form, or does not name its topic.
    """
    tag, rest = split(given)
    places = _places(LAST_EVENT_ID.name, rest)
    if places is None:
        raise MalformedRequestError(f"Last-Event-ID '{given}' is not the id of an event")
    if not tag:
        raise MalformedRequestError(
            f"Last-Event-ID '{given}' does not name its topic, which may have been made again since. "
            f"Send an id as events have it, such as {EXAMPLE}.{given}, or begin with ?offset={given} and no id"
        )
    return Beginning(_EARLIEST, places, tag)


def _places(name: str, given: str) -> Places | None:
    if re.fullmatch(_PLACES, given) is None:
        return None
    pairs = (item.split(":") for item in given.split(","))
    return {int(partition): integer_text(name, offset) for partition, offset in pairs}


async def fetch_topic(call: Call) -> web.StreamResponse:
    """Stream the records of all partitions, up to their ends, or until the client disconnects."""
    query = parse_query(call.raw_query)
    framing = framing_type(call.header("Accept"))
    last_id = call.request.headers.get(LAST_EVENT_ID.name)
    timestamp = query.get(TIMESTAMP.name)
    beginning = parse_beginning(query.get(OFFSET.name, _EARLIEST))
    if last_id is not None:
        beginning, timestamp = parse_last_id(last_id), None
    is_following = FOLLOW.read(query)
    highest = max(beginning.places, default=0)
    topic = await call.ports.metadata.topic(call.names["topic"], highest, beginning.topic_tag)
    if highest >= topic.partition_count:
        raise no_such_partition(topic, highest)
    if topic.partition_count > PARTITIONS_MAX:
        raise MalformedRequestError(
            f"topic '{topic.name}' has {topic.partition_count} partitions; one request reads at most "
            f"{PARTITIONS_MAX}: read them one by one, or as a consumer group"
        )
    if is_following is None:
        is_following = framing is StreamFraming.EVENTS
    reader = TopicReader(
        call=call,
        topic_id=topic.topic_id,
        framing=framing,
        format=FORMAT.read(query),
        beginning=beginning,
        timestamp_ms=None if timestamp is None else read_timestamp(timestamp),
        count=COUNT.read(query),
        is_following=is_following,
        is_uncommitted=ISOLATION.read(query),
    )
    return await stream_answer(
        call,
        framing,
        reader.bodies(topic.partition_count),
        topic_missing_code=MISSING_ON_FETCH,
        is_following=is_following,
        places=topic.partition_count,
    )


@dataclass(kw_only=True)
class TopicReader:
    """One client's read of all partitions of a topic.

    Invariant: ``_places`` has, for each partition, the offset after the last record that was sent. So does the id of
    the last event.
    """

    call: Call
    topic_id: str
    framing: StreamFraming
    format: RecordFormat
    beginning: Beginning
    timestamp_ms: int | None
    count: int | None
    """How many records are still to be sent; None: no limit."""
    is_following: bool
    is_uncommitted: bool
    _places: dict[int, int] = field(default_factory=dict)

    async def bodies(self, partition_count: int) -> AsyncGenerator[bytes, None]:
        """Yield the pieces as lines or events; the first piece is empty. An error before it is raised.

        If the reader follows, it also reads partitions that are added later, from their first record.
        """
        async with _Sources() as sources:
            for number in range(partition_count):
                sources.open(self._source(number, self.beginning, self.timestamp_ms))
            answers = await sources.all()
            for number, piece in answers:
                self._places[number] = piece.start_offset if piece else 0
            # This empty piece starts the response, even if no record arrives for a long time.
            yield b""
            while True:
                async with aclosing(self._sent(sources, answers)) as bodies:
                    async for body in bodies:
                        yield body
                if not sources.are_asked or self.count == 0:
                    return
                answers = await sources.some()
                while self.is_following and sources.count < self._partition_count_now():
                    self._places[sources.count] = 0
                    sources.open(self._source(sources.count, Beginning(_EARLIEST), None))

    async def _sent(
        self, sources: "_Sources", answers: Iterable[tuple[int, Piece | None]]
    ) -> AsyncGenerator[bytes, None]:
        """Yield the pieces in ``answers``. After a piece was sent, ask its partition's source for the next one."""
        for number, piece in answers:
            if piece is None or self.count == 0:
                continue
            yield await self._body(number, piece)
            sources.ask(number)

    def _partition_count_now(self) -> int:
        topic = self.call.ports.metadata.image.topic(self.call.names["topic"])
        return 0 if topic is None else min(topic.partition_count, PARTITIONS_MAX)

    def _source(
        self, partition: int, beginning: Beginning, timestamp_ms: int | None
    ) -> RecordSource:
        request = FetchRequest(
            topic=self.call.names["topic"],
            partition=partition,
            offset=beginning.places.get(partition, beginning.offset),
            timestamp_ms=timestamp_ms,
            max_bytes=PIECE_BYTES,
            timeout_ms=0,
            is_local=False,
            is_uncommitted=self.is_uncommitted,
        )
        return RecordSource(
            ports=self.call.ports,
            request=request,
            format=self.format,
            count=self.count,
            is_following=self.is_following,
            topic_tag=tag_of(self.topic_id),
        )

    async def _body(self, number: int, piece: Piece) -> bytes:
        next_offset = piece.next_offset
        if self.count is not None:
            if len(piece.rows) > self.count:
                next_offset = piece.offsets[self.count]
                piece = replace(
                    piece, rows=piece.rows[: self.count], offsets=piece.offsets[: self.count]
                )
            self.count -= len(piece.rows)
        body = await piece.framed(self.framing, self._ids(number, piece.offsets))
        self._places[number] = next_offset
        return body

    def _ids(self, number: int, offsets: Sequence[int]) -> Iterator[bytes]:
        """Yield the ids of events with these offsets in partition ``number``; other partitions keep their offsets."""
        others = [b"%d:%d" % place for place in self._places.items()]
        others[number] = b"%d:%%d" % number
        head = tagged(self.topic_id, "").encode()
        return map((head + b",".join(others)).__mod__, (offset + 1 for offset in offsets))


class _Sources:
    """The sources of all partitions, and which were asked for their next piece. Leaving the block closes all."""

    def __init__(self) -> None:
        self._pieces: list[AsyncGenerator[Piece, None]] = []
        self._asked: dict[asyncio.Task[Piece | None], int] = {}

    async def __aenter__(self) -> "_Sources":
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._asked:
            task.cancel()
        await asyncio.gather(*self._asked, return_exceptions=True)
        for pieces in self._pieces:
            await pieces.aclose()

    @property
    def count(self) -> int:
        """The number of partitions."""
        return len(self._pieces)

    @property
    def are_asked(self) -> bool:
        """Whether a source was asked for a piece and has not returned it yet."""
        return bool(self._asked)

    def open(self, source: RecordSource) -> None:
        """Add the next partition, and ask its source at once."""
        self._pieces.append(source.pieces())
        self.ask(len(self._pieces) - 1)

    def ask(self, number: int) -> None:
        """Ask a source for its next piece; it must have returned the piece before."""
        self._asked[asyncio.create_task(_next_of(self._pieces[number]))] = number

    async def all(self) -> list[tuple[int, Piece | None]]:
        """Wait for the pieces of all sources; return them with partition numbers. None: the source has ended."""
        return await self._answers(asyncio.ALL_COMPLETED)

    async def some(self) -> list[tuple[int, Piece | None]]:
        """Wait for a piece of any source; return all pieces that are there, with partition numbers."""
        return await self._answers(asyncio.FIRST_COMPLETED)

    async def _answers(self, when: str) -> list[tuple[int, Piece | None]]:
        done, _ = await asyncio.wait(self._asked, return_when=when)
        found = [(self._asked.pop(task), task.result()) for task in done]
        return sorted(found, key=lambda answer: answer[0])


async def _next_of(pieces: AsyncGenerator[Piece, None]) -> Piece | None:
    return await anext(pieces, None)
