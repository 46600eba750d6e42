"""What clients did and were told, and what that says about the promises. Judges from the outside alone."""

from dataclasses import dataclass, field

_LARGE_BYTES = 17_000
"""Above ``storage.segments.tail.TAIL_BYTES_MAX``."""
_LARGE_ENDS = ("07", "37", "67")
"""Of names of values: more would make runs a fifth slower."""
_FILLER = b"."


def encoded(value: str) -> bytes:
    """The value as it is sent. Some are large: those go other ways through a leader."""
    return value.encode() + _FILLER * (_LARGE_BYTES if value.endswith(_LARGE_ENDS) else 0)


def decoded(value: bytes) -> str:
    """The value that was sent."""
    return value.rstrip(_FILLER).decode()


@dataclass(slots=True)
class Write:
    """One value that was sent; ``offset`` once it was acknowledged."""

    value: str
    partition: int | None
    """None: as its key falls."""
    kind: str = "plain"
    """plain, keyed (sent again and again under an idempotency key) or idempotent (under a producer's sequence)."""
    offset: int | None = None
    is_refused: bool = False
    """Certainly not written, somebody said."""
    is_in_doubt: bool = False
    """Some try got no answer."""
    why: str = ""
    is_given_up: bool = False
    """Not tried again: the topic has other partitions than when it was sent, so nobody says what became of it."""
    sequence: int = -1
    producer: int = -1


@dataclass(slots=True)
class History:
    """Writes of one run, and what is wrong with them."""

    writes: dict[str, Write] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    reads: int = 0
    doubts: int = 0
    """Answers that said that the fate is not known."""

    @property
    def acknowledged(self) -> int:
        """Writes that were acknowledged."""
        return sum(write.offset is not None for write in self.writes.values())

    def judge(self, copies: dict[int, dict[int, str]]) -> None:
        """``copies``: partition → offset → value, as it is in the end."""
        self._judge_spread(copies)
        for partition, values in copies.items():
            places: dict[str, list[int]] = {}
            for offset in sorted(values):
                places.setdefault(values[offset], []).append(offset)
            self._judge_found(partition, places)
            self._judge_sent(partition, places)

    def _judge_spread(self, copies: dict[int, dict[int, str]]) -> None:
        """What went where its key fell is where it was acknowledged, and nowhere else."""
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
