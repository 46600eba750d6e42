"""Is what a consumer group promises true of this history? Pure; each finding is a name and a sentence.

``lost-record``          never processed, yet the group's committed offset has passed it
``starved-partition``    never processed, nor passed, although there was all the time in the world
``starved-member``       lives, and got nothing, although there are partitions enough
``owned-twice``          two members had a partition in the same generation
``owned-at-once``        two members worked on a partition at the same time, both within their sessions
``fenced-commit``        accepted from a member that did not own the partition any more
``commit-went-back``     a committed offset is less than what was acknowledged, or seen, before
``committed-unread``     a member committed what no member had processed
``other-record``         two members read different records at one offset

``late-commit`` is no violation: an attempt whose sender never heard of its fate took place after later ones.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator

from tests.support.groups.history import (
    Answered,
    Commit,
    Fate,
    Fenced,
    GroupHistory,
    LetGo,
    Looked,
    Processed,
)

Finding = tuple[str, str]
"""Name of the anomaly, and a sentence."""
NOTED_ONLY = frozenset({"late-commit"})
NO_EPOCH = -1
"""The epoch of consumers that do not learn theirs. Their right to commit is unknown from outside."""
CLOCK_SLACK_S = 0.01
"""Sessions are measured on two clocks that drift."""


def violations(history: GroupHistory) -> list[str]:
    """Return the violations, in words."""
    return [f"{name}: {text}" for name, text in findings(history) if name not in NOTED_ONLY]


def findings(history: GroupHistory) -> list[Finding]:
    """All that is worth a word."""
    return [finding for check in CHECKS for finding in check(history)]


def check_generations(history: GroupHistory) -> Iterator[Finding]:
    """Targets of one generation do not meet."""
    owners: dict[tuple[int, int], str] = {}
    for event in history.of(Answered):
        assert isinstance(event, Answered)
        for partition in event.assignment | event.pending:
            owner = owners.setdefault((event.generation, partition), event.member)
            if owner != event.member:
                yield (
                    "owned-twice",
                    f"partition {partition} in generation {event.generation}: {owner} and {event.member}",
                )


def check_exclusion(history: GroupHistory) -> Iterator[Finding]:
    """A member that keeps its session is alone with its partitions."""
    holds: dict[int, dict[str, float]] = defaultdict(dict)
    for event in history.events:
        match event:
            case Answered():
                _renew(holds, event)
                for partition in event.assignment:
                    yield from _meetings(holds[partition], partition, event)
            case LetGo():
                for partition in event.partitions:
                    holds[partition].pop(event.member, None)
            case Fenced():
                for members in holds.values():
                    members.pop(event.member, None)
            case _:
                pass


def _renew(holds: dict[int, dict[str, float]], event: Answered) -> None:
    for partition, members in holds.items():
        if partition not in event.assignment:
            members.pop(event.member, None)
    for partition in event.assignment:
        holds[partition][event.member] = event.valid_until_s


def _meetings(members: dict[str, float], partition: int, event: Answered) -> Iterator[Finding]:
    for other, until_s in members.items():
        if other != event.member and until_s > event.at_s + CLOCK_SLACK_S:
            new = f"{event.member} (generation {event.generation})"
            text = (
                f"partition {partition} at {event.at_s:.3f} s: {new}, {other} until {until_s:.3f} s"
            )
            yield "owned-at-once", text


def check_fencing(history: GroupHistory) -> Iterator[Finding]:
    """Once another member has a partition, nothing is accepted from its former owner."""
    answers = [event for event in history.of(Answered) if isinstance(event, Answered)]
    fenced: dict[str, list[Fenced]] = defaultdict(list)
    for told in history.of(Fenced):
        assert isinstance(told, Fenced)
        fenced[told.member].append(told)
    for commit in _accepted(history):
        for told in fenced[commit.member]:
            if told.epoch == commit.epoch and told.at_s < commit.sent_s:
                yield "fenced-commit", f"{_words(commit)} after {commit.member} was told to go"
        for partition, _ in commit.offsets if commit.epoch != NO_EPOCH else ():
            later = _later_owner(answers, commit, partition)
            if later is not None:
                owner = f"{later.member}'s (generation {later.generation}) at {later.at_s:.3f} s"
                yield "fenced-commit", f"{_words(commit)}: partition {partition} was {owner}"


def _later_owner(answers: list[Answered], commit: Commit, partition: int) -> Answered | None:
    """Return who had the partition in a later generation before the commit was sent; None if it came back."""
    known = [a for a in answers if partition in a.assignment and a.generation > commit.epoch]
    others = [a for a in known if a.member != commit.member and a.at_s < commit.sent_s]
    if not others:
        return None
    last = max(others, key=lambda a: a.generation)
    mine = [a for a in known if a.member == commit.member and a.at_s <= commit.at_s]
    came_back = any(a.generation > last.generation for a in mine)
    return None if came_back else last


def check_commits(history: GroupHistory) -> Iterator[Finding]:
    """Check that no answer is below an offset that was acknowledged or seen before the question."""
    known: list[tuple[float, int, int, str]] = []
    for commit in _accepted(history):
        known += [(commit.at_s, p, offset, _words(commit)) for p, offset in commit.offsets]
    looks = [event for event in history.of(Looked) if isinstance(event, Looked)]
    for look in looks:
        known += [
            (look.at_s, p, offset, f"seen at {look.at_s:.3f} s") for p, offset in look.offsets
        ]
    attempts = [
        (event.sent_s, event.offsets)
        for event in history.of(Commit)
        if isinstance(event, Commit) and event.fate is Fate.UNKNOWN
    ]
    for look in looks:
        yield from _went_back(look, known, attempts)


def _went_back(
    look: Looked,
    known: list[tuple[float, int, int, str]],
    attempts: list[tuple[float, tuple[tuple[int, int], ...]]],
) -> Iterator[Finding]:
    found = dict(look.offsets)
    least: dict[int, tuple[int, str]] = {}
    for at_s, partition, offset, why in known:
        if at_s < look.sent_s and offset > least.get(partition, (-1, ""))[0]:
            least[partition] = (offset, why)
    for partition, (offset, why) in least.items():
        now = found.get(partition, -1)
        if now < offset:
            is_late = any(
                sent_s < look.at_s and (partition, now) in offsets for sent_s, offsets in attempts
            )
            name = "late-commit" if is_late else "commit-went-back"
            yield name, f"partition {partition}: {now} at {look.at_s:.3f} s, but {offset}: {why}"


def check_records(history: GroupHistory) -> Iterator[Finding]:
    """Every record is processed by somebody, and is the same for all."""
    values: dict[tuple[int, int], str] = {}
    for event in history.of(Processed):
        assert isinstance(event, Processed)
        for step, value in enumerate(event.values):
            place = (event.partition, event.first + step)
            if values.setdefault(place, value) != value:
                yield "other-record", f"{place}: {values[place]} and {value} ({event.member})"
    passed: dict[int, int] = defaultdict(int)
    for look in history.of(Looked):
        assert isinstance(look, Looked)
        for partition, offset in look.offsets:
            passed[partition] = max(passed[partition], offset)
    for partition, end in history.ends.items():
        missing = [offset for offset in range(end) if (partition, offset) not in values]
        lost = [offset for offset in missing if offset < passed[partition]]
        starved = [offset for offset in missing if offset >= passed[partition]]
        if lost:
            yield "lost-record", f"partition {partition}: {_span(lost)}"
        if starved and history.is_drained:
            yield "starved-partition", f"partition {partition}: {_span(starved)}"


def check_reading_before_committing(history: GroupHistory) -> Iterator[Finding]:
    """An attempt to commit comes after the work that it stands for: else the workload itself is wrong."""
    done: dict[int, list[tuple[float, int, int]]] = defaultdict(list)
    for event in history.of(Processed):
        assert isinstance(event, Processed)
        done[event.partition].append((event.at_s, event.first, event.end))
    for commit in _accepted(history):
        for partition, offset in commit.offsets:
            read = sorted((f, e) for at_s, f, e in done[partition] if at_s <= commit.sent_s)
            reached = 0
            for first, end in read:
                if first <= reached:
                    reached = max(reached, end)
            if reached < offset:
                yield (
                    "committed-unread",
                    f"{_words(commit)}: partition {partition} was read up to {reached}",
                )


def check_members(history: GroupHistory) -> Iterator[Finding]:
    """In the end everybody who lives has work, as long as there is enough of it, and all of it is done."""
    if not history.is_drained or not history.survivors:
        return
    last = {event.member: event for event in history.of(Answered) if isinstance(event, Answered)}
    owned = {member: last[member].assignment for member in history.survivors if member in last}
    for partition in history.ends:
        if not any(partition in partitions for partitions in owned.values()):
            yield "starved-partition", f"partition {partition} belongs to nobody in the end"
    for member in history.survivors:
        if not owned.get(member) and len(history.survivors) <= len(history.ends):
            yield "starved-member", f"{member} has nothing in the end"


def _accepted(history: GroupHistory) -> Iterator[Commit]:
    for event in history.of(Commit):
        if isinstance(event, Commit) and event.fate is Fate.OK:
            yield event


def _words(commit: Commit) -> str:
    return (
        f"{commit.member} committed {dict(commit.offsets)} under epoch {commit.epoch} "
        f"at {commit.sent_s:.3f} to {commit.at_s:.3f} s"
    )


def _span(offsets: list[int]) -> str:
    return f"{len(offsets)} records between {offsets[0]} and {offsets[-1]}"


CHECKS: tuple[Callable[[GroupHistory], Iterator[Finding]], ...] = (
    check_generations,
    check_exclusion,
    check_fencing,
    check_commits,
    check_records,
    check_reading_before_committing,
    check_members,
)
