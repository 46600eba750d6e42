"""The replica fetch between brokers: request and response of a follower's fetch from a leader's node.

One request covers all partitions that the follower follows at this node. It is incremental (KIP-227): the leader's node
keeps a session in memory. The follower lists only the positions that changed since its last request. The response lists
only partitions that changed. For each position, the leader sends data once. It sends more when the position has moved.

Request header:

- ``s``: session id
- ``full``: whether this request starts a session
- ``be``: broker epoch of the follower
- ``p``: positions ``[index, topic_id, partition, leader_epoch, offset, last_epoch]``
- ``f``: indexes of partitions that are not followed any more
- ``w``: longest wait in ms
- ``m``: most bytes of the response
- ``room``: whether the follower's disk has room
- ``ls``: pairs ``[index, log_start]`` of positions whose log start differs from the one sent last in this session and
  leader epoch. Earlier releases do not send it.
- ``bad``: indexes of partitions whose last records arrived damaged. Absent if there are none; earlier releases do not
  send it.

Response header: ``r``, rows ``[index, code, high_watermark, log_start, bytes, a, b]``. The body has the bytes of all
rows, one after the other. ``index`` is the follower's own number for the partition.
"""

from dataclasses import dataclass
from enum import IntEnum, unique

from milena.model.errors import CorruptLogError

FETCH = "fetch"
FETCH_WAKE = "fetch_wake"


@unique
class FetchCode(IntEnum):
    """The code of a row: why it is in the response, and what ``a`` and ``b`` mean."""

    OK = 0
    """a = the offset at which the leader's copy is damaged, if no live replica can restore it, else -1. It matters if
    the follower refuses the row's bytes as damaged. Earlier releases send -1, and ignore it."""
    DIVERGING = 1
    """a = the leader's greatest epoch <= the position's last epoch, b = the end offset of this epoch."""
    BELOW_LOG_START = 2
    """a = the leader's log start; the row's bytes are the leader's producer snapshot."""
    STALE_LEADER_EPOCH = 3
    UNKNOWN_LEADER_EPOCH = 4
    STALE_BROKER_EPOCH = 5
    NOT_A_REPLICA = 6
    NOT_LEADER = 7
    """The leader may also have failed to read its records: a as for ``OK``."""
    UNKNOWN_SESSION = 8
    """The only row of its response: the leader's node restarted, or removed the session. Start a new session."""


@dataclass(slots=True, init=False)
class Position:
    """The end of a follower's log in one partition.

    Writers wait while positions and rows are created, so creating them must be fast. Therefore these classes are not
    frozen and write out ``__init__``: a generated one stays interpreted when this module is compiled.
    """

    index: int
    topic_id: str
    partition: int
    leader_epoch: int
    offset: int
    last_epoch: int

    def __init__(  # noqa: PLR0917 - a call per partition: peers' lists are unpacked into it
        self,
        index: int,
        topic_id: str,
        partition: int,
        leader_epoch: int,
        offset: int,
        last_epoch: int,
    ) -> None:
        self.index = index
        self.topic_id = topic_id
        self.partition = partition
        self.leader_epoch = leader_epoch
        self.offset = offset
        self.last_epoch = last_epoch


@dataclass(slots=True, init=False)
class Row:
    """The part of a response about one partition."""

    index: int
    code: FetchCode
    high_watermark: int
    log_start: int
    size: int
    a: int
    b: int

    def __init__(  # noqa: PLR0917 - a call per partition: peers' lists are unpacked into it
        self,
        index: int,
        code: FetchCode,
        high_watermark: int = -1,
        log_start: int = -1,
        size: int = 0,
        a: int = -1,
        b: int = -1,
    ) -> None:
        self.index = index
        self.code = code
        self.high_watermark = high_watermark
        self.log_start = log_start
        self.size = size
        self.a = a
        self.b = b

    def pack(self) -> list[int]:
        """Return the row as the list that is sent."""
        # msgpack packs the code as an int, because ``FetchCode`` is an IntEnum.
        return [
            self.index,
            self.code,
            self.high_watermark,
            self.log_start,
            self.size,
            self.a,
            self.b,
        ]


def parse_positions(raw: object) -> list[Position]:
    """Return the positions that a peer sent.

    Raises:
        CorruptLogError: ``raw`` is not a list of positions.
    """
    if not isinstance(raw, list):
        raise CorruptLogError("fetch: positions are not a list")
    positions = []
    for item in raw:
        # ``match`` would take ten times as long, and writers wait for this.
        if type(item) is not list or [*map(type, item)] != _POSITION_TYPES:
            raise CorruptLogError("fetch: a position has the wrong shape")
        index, topic_id, partition, leader_epoch, offset, last_epoch = item
        positions.append(Position(index, topic_id, partition, leader_epoch, offset, last_epoch))
    return positions


_POSITION_TYPES = [int, str, int, int, int, int]


def parse_log_starts(raw: object) -> dict[int, int]:
    """Return the log starts that a peer sent, by index; empty if the peer has an earlier release.

    Raises:
        CorruptLogError: ``raw`` is not a list of pairs.
    """
    if raw is None:
        return {}
    if not isinstance(raw, list):
        raise CorruptLogError("fetch: log starts are not a list")
    starts: dict[int, int] = {}
    for item in raw:
        match item:
            case [int(index), int(start)]:
                starts[index] = start
            case _:
                raise CorruptLogError("fetch: a log start has the wrong shape")
    return starts


def parse_rows(raw: object, body_bytes: int) -> list[Row]:
    """Return the rows of a peer's response.

    Raises:
        CorruptLogError: ``raw`` is not a list of rows, or the rows' sizes do not add up to the body.
    """
    if not isinstance(raw, list):
        raise CorruptLogError("fetch: rows are not a list")
    rows = []
    total = 0
    for item in raw:
        # ``match`` would take four times as long, and writers wait for this.
        if type(item) is not list or [*map(type, item)] != _ROW_TYPES:
            raise CorruptLogError("fetch: a row has the wrong shape")
        index, code, high_watermark, log_start, size, a, b = item
        if size < 0:
            raise CorruptLogError(f"fetch: a row has {size} bytes")
        rows.append(Row(index, _code(code), high_watermark, log_start, size, a, b))
        total += size
    if total != body_bytes:
        raise CorruptLogError(f"fetch: rows hold {total} bytes, the body {body_bytes}")
    return rows


def _code(number: int) -> FetchCode:
    code = _CODES.get(number)
    if code is None:
        raise CorruptLogError(f"fetch: a row has code {number}, which is not known here")
    return code


_CODES = {int(code): code for code in FetchCode}
_ROW_TYPES = [int] * 7
