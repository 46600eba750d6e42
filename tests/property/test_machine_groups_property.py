"""Consumer groups under random histories: the promises of groups, judged without the code that keeps them."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from raft_meta.machine import codec, invariants
from raft_meta.machine import commands as c
from raft_meta.machine.apply import Applied, apply
from raft_meta.machine.groups.coordinators import coordinator_of
from raft_meta.machine.image import Group, Image
from tests.support.machine.commands import random_group_history
from tests.support.machine.rules import flat, keys, may_commit

SEEDS = st.integers(min_value=0, max_value=1 << 32)


def steps(seed: int, length: int = 150) -> list[tuple[Image, c.Command, Applied]]:
    """The image before, the command and what came of it; retries of the command before are left out."""
    log, results = random_group_history(seed, length)
    images = [Image(), *(result.image for result in results)]
    before = [None, *log]
    return [
        (image, codec.decode_envelope(entry).command, result)
        for image, entry, last, result in zip(images, log, before, results, strict=False)
        if entry != last
    ]


@settings(max_examples=40)
@given(SEEDS)
def test_every_image_keeps_its_invariants(seed: int) -> None:
    for image, command, result in steps(seed):
        assert not invariants.violations(result.image), f"{command} after {image.index}"


@settings(max_examples=40)
@given(SEEDS)
def test_no_partition_is_held_twice(seed: int) -> None:
    """At no time, in whatever generation: what one member may be working on, no other may."""
    for _, command, result in steps(seed):
        for group in result.image.groups.values():
            for what in ("held", "target"):
                owners = Counter(key for m in group.members for key in keys(getattr(m, what)))
                assert not owners or max(owners.values()) == 1, f"{what} after {command}"


@settings(max_examples=40)
@given(SEEDS)
def test_epochs_and_generations_never_go_back(seed: int) -> None:
    """An epoch is never given out again under a member's id, as long as its group is not forgotten."""
    highest: dict[tuple[str, str], int] = {}
    for image, _, result in steps(seed):
        for group_id, before in image.groups.items():
            after = result.image.groups.get(group_id)
            if after is None:
                highest = {key: epoch for key, epoch in highest.items() if key[0] != group_id}
            else:
                check_step(before, after, highest)
        for group in result.image.groups.values():
            for member in group.members:
                highest[group.group_id, member.member_id] = member.member_epoch


def check_step(before: Group, after: Group, highest: dict[tuple[str, str], int]) -> None:
    if after != before:
        assert after.version > before.version
    assert after.generation >= before.generation
    former = {member.member_id: member for member in before.members}
    for member in after.members:
        old = former.get(member.member_id)
        spent = highest.get((after.group_id, member.member_id), 0)
        assert member.member_epoch >= spent
        if old is None:
            assert member.member_epoch > max(spent, before.generation)
        elif after.generation == before.generation:
            assert keys(member.target) <= keys(old.target)
        if old is not None:
            assert keys(member.held) <= keys(old.held) | keys(member.target)


@settings(max_examples=60)
@given(SEEDS)
def test_offsets_move_by_commits_of_those_who_may(seed: int) -> None:
    """A plain dictionary, told of every commit that the rules allow, has what the image has."""
    for image, command, result in steps(seed):
        wanted = flat(image)
        if isinstance(command, c.CommitOffsets) and is_answered(result):
            answers = codec.decode_response(result.response)
            assert isinstance(answers, tuple)
            known = {group.group_id for group in image.groups.values()}
            for commit, answer in zip(command.commits, answers, strict=True):
                may = coordinator_of(image, commit.group_id) == command.broker_id and may_commit(
                    image, commit
                )
                assert (answer == "") == may, f"{commit}: {answer!r}"
                if may:
                    known.add(commit.group_id)
                    for o in commit.offsets:
                        wanted[commit.group_id, (o.topic_id, o.partition)] = o.offset
            assert set(result.image.groups) == known
        elif isinstance(command, c.EndTransactions):
            continue  # what they do to offsets is judged with all else of them
        elif isinstance(command, c.DeleteTopic | c.DeleteGroup | c.ExpireOffsets):
            assert flat(result.image).items() <= wanted.items()
            wanted = flat(result.image)
        assert flat(result.image) == wanted, f"{command}"


def is_answered(result: Applied) -> bool:
    return result.error is None


@settings(max_examples=40)
@given(SEEDS)
def test_groups_in_use_keep_their_offsets(seed: int) -> None:
    for image, command, result in steps(seed):
        if isinstance(command, c.ExpireOffsets | c.DeleteGroup):
            for group_id, group in image.groups.items():
                if group.members:
                    assert result.image.groups[group_id] is group
                    assert result.image.offsets.get(group_id) == image.offsets.get(group_id)


@settings(max_examples=40)
@given(SEEDS)
def test_a_deleted_topic_leaves_no_trace(seed: int) -> None:
    for _, command, result in steps(seed):
        if isinstance(command, c.DeleteTopic) and result.error is None:
            for row in rows(result.image):
                assert command.topic_id not in row


def rows(image: Image) -> list[str]:
    """Everything said about groups, as text."""
    members = [repr(group.members) for group in image.groups.values()]
    offsets = [repr(dict(found)) for found in image.offsets.values()]
    return [*members, *offsets, *(repr(consumer) for consumer in image.consumers.values())]


@settings(max_examples=40)
@given(SEEDS, st.integers(min_value=0, max_value=150))
def test_replay_and_snapshot_give_the_same_bytes(seed: int, cut: int) -> None:
    log, results = random_group_history(seed, 150)
    wanted = b"".join(codec.encode_image(results[-1].image))
    restored = codec.decode_image(codec.encode_image(replayed(Image(), log[:cut])))
    assert b"".join(codec.encode_image(replayed(restored, log[cut:]))) == wanted


def replayed(image: Image, log: list[bytes]) -> Image:
    for command in log:
        image = apply(image, image.index + 1, codec.decode_envelope(command)).image
    return image


@settings(max_examples=40)
@given(SEEDS)
def test_a_refused_command_changes_nothing(seed: int) -> None:
    for image, _, result in steps(seed):
        if result.error is not None:
            assert result.image.groups is image.groups
            assert result.image.offsets is image.offsets
            assert result.image.consumers is image.consumers


@settings(max_examples=40)
@given(SEEDS)
def test_a_group_that_did_not_change_is_the_same_object(seed: int) -> None:
    """Nodes tell by identity which groups they have to look at."""
    for image, _, result in steps(seed):
        for group_id, after in result.image.groups.items():
            before = image.groups.get(group_id)
            assert (after == before) == (after is before)


def test_the_histories_reach_what_they_are_for() -> None:
    """Members that wait for one another, fenced commits, offsets that expire, groups that go and topics under them."""
    seen: Counter[str] = Counter()
    for seed in range(30):
        for image, command, result in steps(seed):
            name = type(command).__name__
            seen[name] += result.error is None
            if isinstance(command, c.CommitOffsets) and result.error is None:
                seen.update(str(answer) for answer in pairs(result))
            if isinstance(command, c.ExpireOffsets) and result.error is None:
                seen["expired"] += len(flat(image)) - len(flat(result.image))
            if isinstance(command, c.DeleteTopic) and result.error is None:
                seen["lost"] += result.image.groups != image.groups
        groups = [group for _, _, r in steps(seed) for group in r.image.groups.values()]
        seen["waiting"] += sum(any(m.held != m.target for m in group.members) for group in groups)
        seen["several"] += sum(sum(bool(m.held) for m in group.members) > 1 for group in groups)
    wanted = ["AlterGroup", "PutConsumer", "DeleteConsumers", "DeleteGroup", "", "waiting"]
    wanted += ["several", "stale_member_epoch", "group_not_empty", "expired", "lost"]
    assert min(seen[name] for name in wanted) > 5, seen


def pairs(result: Applied) -> tuple[int | str, ...]:
    answers = codec.decode_response(result.response)
    assert isinstance(answers, tuple)
    return answers
