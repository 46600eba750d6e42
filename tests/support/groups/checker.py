"""Check a history against the promises of a consumer group (pure). A finding is a name and a sentence.

``lost-record``          never processed, although the group's committed offset is above it
``starved-partition``    never processed and not below the committed offset, although there was enough time
``starved-member``       alive at the end without a partition, although there are enough partitions
``owned-twice``          two members were assigned a partition in the same generation
``owned-at-once``        two members worked on a partition at the same time, both within their sessions
``fenced-commit``        accepted from a member that did not own the partition any more
``commit-went-back``     a committed offset is less than one that was acknowledged or seen earlier
``committed-unread``     a member committed an offset up to which no member had processed
``other-record``         two members read different records at one offset

``late-commit`` is no violation: an attempt whose sender got no response took effect after later attempts.
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
"""The name of a finding, and a sentence."""
NOTED_ONLY = frozenset({"late-commit"})
NO_EPOCH = -1
"""The epoch of consumers that do not learn their epoch: a test cannot know whether their commits are allowed."""
CLOCK_SLACK_S = 0.01
"""The tolerance in s: the member's clock and the coordinator's, which both measure a session, drift."""


def violations(history: GroupHistory) -> list[str]:
    """Return the violations, in words."""
    return [f"{name}: {text}" for name, text in findings(history) if name not in NOTED_ONLY]


def findings(history: GroupHistory) -> list[Finding]:
    """Return all findings, including those that are no violations."""
    return [finding for check in CHECKS for finding in check(history)]


def check_generations(history: GroupHistory) -> Iterator[Finding]:
    """Check that no partition is assigned to two members in one generation."""
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
    """Check that a member within its session is the only one that works on its partitions."""
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
    """Check that no commit of a former owner is accepted after another member owns the partition."""
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
    """Return the owner of the partition in a later generation before the commit was sent; None if it came back."""
    known = [a for a in answers if partition in a.assignment and a.generation > commit.epoch]
    others = [a for a in known if a.member != commit.member and a.at_s < commit.sent_s]
    if not others:
        return None
    last = max(others, key=lambda a: a.generation)
    mine = [a for a in known if a.member == commit.member and a.at_s <= commit.at_s]
    came_back = any(a.generation > last.generation for a in mine)
    return None if came_back else last


def check_commits(history: GroupHistory) -> Iterator[Finding]:
    """Check that no response has an offset below one that was acknowledged or seen before the request."""
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
    """Check that every record is processed, and that all members read the same record at an offset."""
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
    """Check that members commit only what was processed; otherwise the test's members themselves are wrong."""
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
    """Check that at the end every member has partitions, if there are enough, and that all work is done."""
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
