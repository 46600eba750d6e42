"""The clients' writes and their responses, and a check of the promises that uses nothing else."""

from dataclasses import dataclass, field

_LARGE_BYTES = 17_000
"""A size above ``storage.segments.tail.TAIL_BYTES_MAX``, in bytes."""
_LARGE_ENDS = ("07", "37", "67")
"""The last two characters of the names of large values. With more of them, runs would be a fifth slower."""
_FILLER = b"."


def encoded(value: str) -> bytes:
    """Return the value's bytes. Some values are large, because a leader handles these in another way."""
    return value.encode() + _FILLER * (_LARGE_BYTES if value.endswith(_LARGE_ENDS) else 0)


def decoded(value: bytes) -> str:
    """Return the value of the bytes."""
    return value.rstrip(_FILLER).decode()


@dataclass(slots=True)
class Write:
    """One value that was sent; ``offset`` is set when it is acknowledged."""

    value: str
    partition: int | None
    """The partition; None if the key decides."""
    kind: str = "plain"
    """plain; keyed: repeated with an idempotency key; or idempotent: repeated with a producer's sequence."""
    offset: int | None = None
    is_refused: bool = False
    """Whether a response promised that the value was not written."""
    is_in_doubt: bool = False
    """Whether some attempt got no response."""
    why: str = ""
    is_given_up: bool = False
    """Whether the writer stopped without a response, because the topic got more partitions; the fate is unknown."""
    sequence: int = -1
    producer: int = -1


@dataclass(slots=True)
class History:
    """The writes of one run, and the problems found in them."""

    writes: dict[str, Write] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    reads: int = 0
    doubts: int = 0
    """The number of responses with an unknown fate."""

    @property
    def acknowledged(self) -> int:
        """Return the number of acknowledged writes."""
        return sum(write.offset is not None for write in self.writes.values())

    def judge(self, copies: dict[int, dict[int, str]]) -> None:
        """Check the writes against the final values, by partition and offset."""
        self._judge_spread(copies)
        for partition, values in copies.items():
            places: dict[str, list[int]] = {}
            for offset in sorted(values):
                places.setdefault(values[offset], []).append(offset)
            self._judge_found(partition, places)
            self._judge_sent(partition, places)

    def _judge_spread(self, copies: dict[int, dict[int, str]]) -> None:
        """Check that a value whose key chose its partition is only where it was acknowledged."""
        found: dict[str, list[int]] = {}
        for partition, values in copies.items():
            for value in values.values():
                found.setdefault(value, []).append(partition)
        for write in self.writes.values():
            if write.partition is not None:
                continue
            partitions = found.get(write.value, [])
            if len(partitions) > 1:
                self.problems.append(f"duplicate: {write.kind} {write.value} in {partitions}")
            if partitions:
                write.partition = partitions[0]
            elif write.offset is not None:
                self.problems.append(f"lost-write: {write.kind} {write.value} is nowhere")

    def _judge_found(self, partition: int, places: dict[str, list[int]]) -> None:
        last: dict[int, int] = {}
        for value, offsets in places.items():
            write = self.writes.get(value)
            if write is None or write.partition != partition:
                self.problems.append(f"unsent: {value} at {partition}/{offsets}")
                continue
            if write.is_refused:
                self.problems.append(f"refused-but-there: {value} at {offsets} ({write.why})")
            if len(offsets) > 1:
                self.problems.append(f"duplicate: {write.kind} {value} at {partition}/{offsets}")
            if write.producer >= 0:
                if write.sequence < last.get(write.producer, -1):
                    self.problems.append(f"reordered: {value} at {partition}/{offsets}")
                last[write.producer] = write.sequence

    def _judge_sent(self, partition: int, places: dict[str, list[int]]) -> None:
        for write in self.writes.values():
            if write.partition == partition and write.offset is not None:
                found = places.get(write.value, [])
                if write.offset not in found:
                    self.problems.append(
                        f"lost-write: {write.kind} {write.value} acknowledged at "
                        f"{partition}/{write.offset}, found at {found}"
                    )
