"""Transactions under random histories: the promises of each, judged without the code that keeps them."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from raft_meta.machine import codec, invariants
from raft_meta.machine import commands as c
from raft_meta.machine.apply import Applied, apply
from raft_meta.machine.image import Ending, Image, PartitionKey, TransactionKey
from raft_meta.machine.transactions import NotCommitted, outcome_of
from tests.support.machine.commands import random_transaction_history
from tests.support.machine.rules import TransactionTwin

SEEDS = st.integers(min_value=0, max_value=1 << 32)
LENGTH = 120
Outcomes = dict[tuple[PartitionKey, TransactionKey], Ending | NotCommitted]


def steps(seed: int) -> list[tuple[Image, c.Command, Applied]]:
    """The image before, the command and what came of it; retries of the command before are left out."""
    log, results = random_transaction_history(seed, LENGTH)
    images = [Image(), *(result.image for result in results)]
    before = [None, *log]
    return [
        (image, codec.decode_envelope(entry).command, result)
        for image, entry, last, result in zip(images, log, before, results, strict=False)
        if entry != last
    ]


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_every_image_keeps_its_invariants(seed: int) -> None:
    for image, command, result in steps(seed):
        assert not invariants.violations(result.image), f"{command} after {image.index}"


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_ends_and_markers_do_what_the_rules_say(seed: int) -> None:
    """Answers, epochs, endings, offsets and groups are those of the twin, after every command."""
    for image, command, result in steps(seed):
        twin = TransactionTwin(image)
        if result.error is None:
            if isinstance(command, c.EndTransactions):
                wanted = [twin.end(end) for end in command.ends]
                answers = answers_of(result)
                assert [answer == "" for answer in answers] == wanted, f"{command}: {answers}"
                assert (twin.offsets, twin.groups) == offsets_and_groups(result.image)
            elif isinstance(command, c.FinishMarkers):
                finished = sum(twin.finish(marker) for marker in command.markers)
                assert codec.decode_response(result.response) == finished
            elif isinstance(command, c.DeleteTopic):
                twin.delete(command.topic_id)
        after = TransactionTwin(result.image)
        assert twin.ending == after.ending, f"{command}"
        if not isinstance(command, c.AllocateProducer):
            assert (twin.epochs, twin.last) == (after.epochs, after.last), f"{command}"


def answers_of(result: Applied) -> tuple[int | str, ...]:
    answers = codec.decode_response(result.response)
    assert isinstance(answers, tuple)
    return answers


def offsets_and_groups(image: Image) -> tuple[object, object]:
    after = TransactionTwin(image)
    return after.offsets, after.groups


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_what_was_decided_stays_so(seed: int) -> None:
    """Of every transaction that there ever was, in every partition, until its marker is there or its topic gone."""
    begun: set[TransactionKey] = set()
    before: Outcomes = {}
    for _, command, result in steps(seed):
        begun |= {(p.producer_id, p.producer_epoch) for p in result.image.producers.values()}
        after: Outcomes = {
            (key, transaction): outcome_of(result.image, *key, *transaction)
            for key in result.image.partitions
            for transaction in begun
        }
        for at in before.keys() & after.keys():
            if before[at] is NotCommitted.OPEN or before[at] == after[at]:
                continue
            assert isinstance(before[at], Ending), f"{at} came back by {command}"
            assert isinstance(command, c.FinishMarkers), f"{at} was lost by {command}"
            assert at in {of_marker(marker) for marker in command.markers}
        before = after


def of_marker(marker: c.FinishedMarker) -> tuple[PartitionKey, TransactionKey]:
    transaction = (marker.producer_id, marker.producer_epoch)
    return (marker.topic_id, marker.partition), transaction


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_a_transaction_is_open_in_all_partitions_or_in_none(seed: int) -> None:
    """It is decided everywhere in one step, and of a producer one at most is open."""
    for _, command, result in steps(seed):
        image = result.image
        for producer in image.producers.values():
            for epoch in range(producer.producer_epoch + 2):
                found = {
                    outcome_of(image, *k, producer.producer_id, epoch) for k in image.partitions
                }
                is_open = epoch == producer.producer_epoch
                assert (NotCommitted.OPEN in found) == (is_open and bool(found)), f"{command}"
                assert len(found) <= 1 or not is_open, f"{command}"


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_no_topic_with_endings_may_lose_what_it_acknowledged(seed: int) -> None:
    for _, command, result in steps(seed):
        for topic_id, _ in result.image.ending:
            set_here = result.image.topics[topic_id].configs
            assert set_here.get("flush.messages", "1") == "1", f"{command}"
            assert set_here.get("unclean.leader.election.enable") != "true", f"{command}"


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_a_refused_command_changes_nothing(seed: int) -> None:
    for image, _, result in steps(seed):
        if result.error is not None:
            assert result.image.producers is image.producers
            assert result.image.ending is image.ending
            assert result.image.offsets is image.offsets


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_what_did_not_change_is_the_same_object(seed: int) -> None:
    """Leaders tell by identity which of their partitions they have to look at."""
    for image, command, result in steps(seed)[1:]:
        after = result.image
        for key, endings in after.ending.items():
            assert (endings == image.ending.get(key)) == (endings is image.ending.get(key))
        assert (after.ending == image.ending) == (after.ending is image.ending), f"{command}"
        if isinstance(command, c.EndTransactions | c.FinishMarkers):
            for name in ("producers", "groups"):
                old, new = getattr(image, name), getattr(after, name)
                assert (old == new) == (old is new), f"{name} after {command}"
            ends = command.ends if isinstance(command, c.EndTransactions) else ()
            if not any(end.offsets for end in ends):
                assert after.offsets is image.offsets


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(min_value=0, max_value=LENGTH))
def test_replay_and_snapshot_give_the_same_bytes(seed: int, cut: int) -> None:
    log, results = random_transaction_history(seed, LENGTH)
    wanted = b"".join(codec.encode_image(results[-1].image))
    restored = codec.decode_image(codec.encode_image(replayed(Image(), log[:cut])))
    assert b"".join(codec.encode_image(replayed(restored, log[cut:]))) == wanted


def replayed(image: Image, log: list[bytes]) -> Image:
    for command in log:
        image = apply(image, image.index + 1, codec.decode_envelope(command)).image
    return image


def test_the_histories_reach_what_they_are_for() -> None:
    """Commits with offsets and keys, refusals of every kind, takeovers, and topics that go with what ends in them."""
    seen: Counter[str] = Counter()
    for seed in range(30):
        for image, command, result in steps(seed):
            if result.error is not None:
                seen[result.error.code] += 1
            elif isinstance(command, c.EndTransactions):
                seen.update(str(answer) for answer in answers_of(result))
                seen["moved"] += result.image.offsets is not image.offsets
            elif isinstance(command, c.FinishMarkers):
                seen["finished"] += result.image.ending_count < image.ending_count
            elif isinstance(command, c.DeleteTopic):
                seen["lost"] += result.image.ending_count < image.ending_count
            kept = [e for found in result.image.ending.values() for e in found.values()]
            seen["keyed"] += any(ending.extents for ending in kept)
            seen["several"] += any(len(found) > 1 for found in result.image.ending.values())
            seen["taken over"] += any(
                p.producer_epoch and not p.last for p in result.image.producers.values()
            )
    wanted = ["", "moved", "finished", "lost", "keyed", "several", "taken over"]
    wanted += ["transaction_not_found", "stale_producer_epoch", "transaction_aborted"]
    wanted += ["transaction_committed", "topic_not_transactional", "invalid_request"]
    wanted += ["stale_member_epoch", "group_not_empty", "transactions_pending"]
    assert min(seen[name] for name in wanted) > 5, seen
