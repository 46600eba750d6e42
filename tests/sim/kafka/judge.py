"""The end that a run must come to: each transaction whole or not at all, each record once and in order, each offset
with its transaction, and no partition with two owners.

The judge knows what clients were told, reads what clients read, and sees each image.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from raft_meta.machine.image import Group, Image
from raft_meta.machine.topics import partition_sets
from tests.sim.kafka.client import Place


@dataclass
class Tried:
    """A transaction as its producer knows it."""

    name: str
    number: int
    acknowledged: dict[Place, list[str]] = field(default_factory=dict)
    sent: dict[Place, list[str]] = field(default_factory=dict)
    fate: str = "open"
    """``ok``, ``aborted``, ``unknown``, or ``open``: its producer never asked to commit it."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A member works on a partition until then, unless it lets go before."""

    member: str
    until_s: float


class Judge:
    """Collects what happens; ``problems`` has what must not."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.counts: Counter[str] = Counter()
        self.tried: list[Tried] = []
        self.seen: dict[Place, list[str]] = defaultdict(list)
        """The records that readers of committed records have got from the start of each partition on."""
        self.asked: Counter[tuple[str, int]] = Counter()
        """The largest offset that anybody asked to commit, by group and partition."""
        self._generations: dict[tuple[str, int], dict[str, frozenset[int]]] = {}
        """By group and generation: the partitions that members got."""
        self._claims: dict[tuple[str, int], Claim] = {}
        self.now_s: Callable[[], float] = lambda: 0.0
        """The virtual time, which each problem names."""
        self._newest = Image()

    def broken(self, problem: str) -> None:
        """Note what must not happen."""
        self.problems.append(f"{self.now_s():.4f} {problem}")

    # -- groups ----------------------------------------------------------------------------------

    def on_assignment(
        self, group: str, generation: int, member: str, owned: frozenset[int]
    ) -> None:
        """Compare what a member of a classic group got with what others got in its generation."""
        self.counts["assignments"] += 1
        known = self._generations.setdefault((group, generation), {})
        for other, theirs in known.items():
            if other != member and theirs & owned:
                self.broken(
                    f"{other} and {member} of {group} share {theirs & owned} in {generation}"
                )
        if known.setdefault(member, owned) != owned:
            self.broken(f"{member} of {group} has two assignments in generation {generation}")

    def claim(
        self, group: str, member: str, owned: frozenset[int], *, now_s: float, until_s: float
    ) -> None:
        """Note what a member of a server group works on from now on; no other member may."""
        self.counts["assignments"] += 1
        for partition in owned:
            known = self._claims.get((group, partition))
            if known is not None and known.member != member and known.until_s > now_s:
                self.broken(f"{known.member} and {member} of {group} work on {partition}")
            self._claims[group, partition] = Claim(member, until_s)
        self.let_go(group, member, keeps=owned)

    def let_go(self, group: str, member: str, keeps: frozenset[int] = frozenset()) -> None:
        """Note that a member works on nothing else any more."""
        for key, claim in list(self._claims.items()):
            if key[0] == group and claim.member == member and key[1] not in keeps:
                del self._claims[key]

    def on_image(self, image: Image) -> None:
        """Compare an image with the one before it."""
        if image.index <= self._newest.index:
            return
        before, self._newest = self._newest, image
        for group_id, group in image.groups.items():
            former = before.groups.get(group_id)
            if group is not former:
                self._on_group(former, group)
        for group_id, offsets in image.offsets.items():
            known = before.offsets.get(group_id)
            if offsets is known:
                continue
            for key, committed in offsets.items():
                former_offset = -1 if known is None or key not in known else known[key].offset
                if committed.offset < former_offset:
                    self.broken(
                        f"{group_id}: the offset of {key[1]} went from {former_offset} to {committed.offset}"
                    )
                if committed.offset > self.asked[group_id, key[1]]:
                    self.broken(
                        f"{group_id}: nobody asked for offset {committed.offset} of {key[1]}"
                    )
            for key in () if known is None else known:
                if key not in offsets:
                    self.broken(f"{group_id}: the offset of {key[1]} is gone")

    def _on_group(self, before: Group | None, group: Group) -> None:
        if before is not None and group.generation < before.generation:
            self.broken(
                f"{group.group_id}: generation went from {before.generation} to {group.generation}"
            )
        held: set[object] = set()
        for member in group.members:
            own = set(partition_sets.keys_of(member.held))
            if held & own:
                self.broken(f"two members of {group.group_id} hold {held & own}")
            held |= own

    # -- records ---------------------------------------------------------------------------------

    def on_read(self, place: Place, skipped: int, values: list[str]) -> None:
        """Note what a reader of committed records got after the first ``skipped`` ones that readers have seen."""
        self.seen[place][skipped:] = values

    def judge_logs(self, logs: dict[Place, list[str]]) -> None:
        """Compare what all partitions have at the end with what readers saw, and with what each transaction came to."""
        for place, found in logs.items():
            twice = [value for value, count in Counter(found).items() if count > 1]
            if twice:
                self.broken(f"{place} has {twice[:5]} more than once")
            seen = self.seen[place]
            if seen != found[: len(seen)]:
                at = next(
                    (n for n, (a, b) in enumerate(zip(seen, found, strict=False)) if a != b),
                    len(found),
                )
                self.broken(
                    f"{place} had {seen[at : at + 3]} at {at}, and has {found[at : at + 3]}"
                )
        visible = {(place, value) for place, found in logs.items() for value in found}
        for tried in self.tried:
            self.counts[f"transactions {tried.fate}"] += 1
            self._judge_one(tried, visible, logs)

    def _judge_one(
        self, tried: Tried, visible: set[tuple[Place, str]], logs: dict[Place, list[str]]
    ) -> None:
        name = f"{tried.name}:{tried.number}"
        wanted, sent = _pairs(tried.acknowledged), _pairs(tried.sent)
        there = sent & visible
        if tried.fate == "ok" and wanted - there:
            self.broken(f"{name} is committed, and lacks {sorted(wanted - there)[:5]}")
        if tried.fate in {"aborted", "open"} and there:
            self.broken(f"{name} is {tried.fate}, and {sorted(there)[:5]} is there")
        if tried.fate == "unknown" and there and wanted - there:
            self.broken(f"{name} is torn: {len(there)} there, {sorted(wanted - there)[:5]} not")
        for place, values in tried.sent.items():
            mine = set(values)
            found = [value for value in logs.get(place, ()) if value in mine]
            if found and found != values[: len(found)]:
                self.broken(f"{name} wrote {values} to {place} in this order, and {found} is there")

    def judge_copy(self, source: list[str], copy: list[str], partition: int) -> None:
        """Compare a partition with its copy by transactions that read, write, and commit their offsets."""
        self.counts["copied"] += len(copy)
        if source == copy:
            return
        lost, twice = Counter(source) - Counter(copy), Counter(copy) - Counter(source)
        order = "" if lost or twice else ", in another order"
        self.broken(
            f"partition {partition} has {len(source)} records and its copy {len(copy)}: lacks {list(lost)[:5]}, "
            f"has {list(twice)[:5]} too often{order}"
        )

    def judge_sequence(
        self, place: Place, name: str, acknowledged: int, found: Iterable[str]
    ) -> None:
        """Judge the records of an idempotent producer, which are numbered from 0 on."""
        numbers = [int(value.rpartition(":")[2]) for value in found if value.startswith(f"{name}:")]
        if numbers != list(range(len(numbers))):
            self.broken(f"{place}: the records of {name} are {numbers[:50]}")
        if len(numbers) < acknowledged:
            self.broken(f"{place}: {name} was told of {acknowledged}, there are {len(numbers)}")


def _pairs(values: dict[Place, list[str]]) -> set[tuple[Place, str]]:
    return {(place, value) for place, found in values.items() for value in found}
