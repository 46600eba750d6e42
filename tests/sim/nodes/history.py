"""What clients saw, and what that says about the promises. Judges from the outside alone."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Write:
    """One value that was sent; ``offset`` once it was acknowledged."""

    value: str
    partition: int
    offset: int | None = None
    is_refused: bool = False
    """Certainly not written, somebody said."""
    is_keyed: bool = False
    """Sent again and again under an idempotency key."""
    why: str = ""


@dataclass(slots=True)
class History:
    """Writes and observations of one run."""

    writes: dict[str, Write] = field(default_factory=dict)
    reads: dict[tuple[int, int], str] = field(default_factory=dict)
    """(partition, offset) → value, as the first reader saw it."""
    problems: list[str] = field(default_factory=list)

    def on_read(self, partition: int, offset: int, value: str, reader: str) -> None:
        seen = self.reads.setdefault((partition, offset), value)
        if seen != value:
            self.problems.append(
                f"inconsistent-offsets: {partition}/{offset} was {seen}, {reader} reads {value}"
            )

    def judge(self, copies: dict[int, list[list[str]]]) -> list[str]:
        """Everything that is wrong. ``copies``: partition → the values of each replica, from offset 0."""
        for partition, replicas in copies.items():
            for other in replicas[1:]:
                if other != replicas[0]:
                    self.problems.append(f"diverged: replicas of {partition} differ")
            self._judge_partition(partition, replicas[0])
        return self.problems

    def _judge_partition(self, partition: int, values: list[str]) -> None:
        places: dict[str, list[int]] = {}
        for offset, value in enumerate(values):
            places.setdefault(value, []).append(offset)
        for value, offsets in places.items():
            write = self.writes.get(value)
            if write is None or write.partition != partition:
                self.problems.append(f"unsent: {value} at {partition}/{offsets}")
            elif write.is_refused:
                self.problems.append(f"refused-but-there: {value} at {offsets} ({write.why})")
            elif len(offsets) > 1:
                self.problems.append(f"duplicate: {value} at {offsets}")
        for write in self.writes.values():
            if write.partition == partition and write.offset is not None:
                found = places.get(write.value, [])
                if write.offset not in found:
                    self.problems.append(
                        f"lost-write: {write.value} acknowledged at {write.offset}, found at {found}"
                    )
        for (where, offset), value in self.reads.items():
            if where == partition and (offset >= len(values) or values[offset] != value):
                self.problems.append(f"aborted-read: {value} was read at {partition}/{offset}")
