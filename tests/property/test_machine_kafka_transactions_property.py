"""Transactional ids of Kafka clients under random histories: no transaction is torn, doubled, or decided twice."""

from hypothesis import given, settings
from hypothesis import strategies as st

from raft_meta.machine import codec, invariants
from raft_meta.machine import commands as c
from raft_meta.machine.image import Ending, Image, KafkaTransactionalId, TransactionKey
from raft_meta.machine.transactions import NotCommitted, outcome_of
from tests.support.machine.commands import random_kafka_transaction_history

SEEDS = st.integers(min_value=0, max_value=1 << 32)
LENGTH = 150


def histories(seed: int) -> list[tuple[Image, c.Command, Image, tuple[object, ...]]]:
    """The image before, the command, the image after and the answers; retries of the command before are left out."""
    log, results = random_kafka_transaction_history(seed, LENGTH)
    found, before, last = [], Image(), None
    for entry, result in zip(log, results, strict=True):
        if entry != last:
            answers: object = () if result.error else codec.decode_response(result.response)
            command = codec.decode_envelope(entry).command
            found.append(
                (before, command, result.image, answers if isinstance(answers, tuple) else ())
            )
        before, last = result.image, entry
    return found


def owns(image: Image) -> dict[str, TransactionKey]:
    """The identity in logs of the present transaction of each transactional id."""
    found = {}
    for name in image.transactional_ids:
        own = image.producers[image.producer_names[name]]
        found[name] = (own.producer_id, own.producer_epoch)
    return found


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_every_image_keeps_its_invariants_and_survives_a_snapshot(seed: int) -> None:
    for _, command, after, _ in histories(seed):
        assert not invariants.violations(after), f"{command}"
    assert codec.decode_image(codec.encode_image(after)) == after


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_a_transaction_takes_effect_as_a_whole_or_not_at_all(seed: int) -> None:
    for before, command, after, answers in histories(seed):
        if not isinstance(command, c.EndTransactions) or len(command.ends) != 1 or not answers:
            continue
        (end,), (answer,) = command.ends, answers
        named = [name for name, own in owns(before).items() if own[0] == end.producer_id]
        if not named or owns(before)[named[0]][1] != end.producer_epoch:
            continue
        row = before.transactional_ids[named[0]]
        if answer == "" and end.is_commit:
            assert end.version == row.version
            assert all(endings(after, extent_key, end) for extent_key in keys(end))
            for staged in row.offsets:
                key = (staged.topic_id, staged.partition)
                assert after.offsets[staged.group_id][key].offset == staged.offset
        else:
            assert not any(endings(after, key, end) for key in after.partitions)
            assert (after.offsets, after.groups) == (before.offsets, before.groups)


def keys(end: c.TransactionEnd) -> list[tuple[str, int]]:
    return [(extent.topic_id, extent.partition) for extent in end.extents]


def endings(image: Image, key: tuple[str, int], end: c.TransactionEnd) -> Ending | None:
    return image.ending.get(key, {}).get((end.producer_id, end.producer_epoch))  # type: ignore[call-overload]


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_what_was_decided_stays_so_and_epochs_never_fall(seed: int) -> None:
    begun: set[TransactionKey] = set()
    decided: set[tuple[tuple[str, int], TransactionKey]] = set()
    for before, command, after, _ in histories(seed):
        begun |= set(owns(after).values())
        for own in begun:
            for key in after.partitions:
                outcome = outcome_of(after, *key, *own)
                if outcome is not NotCommitted.OPEN:
                    decided.add((key, own))
                assert outcome is not NotCommitted.OPEN or (key, own) not in decided, f"{command}"
        for name, row in after.transactional_ids.items():
            former = before.transactional_ids.get(name)
            if former is not None and former.producer_id == row.producer_id:
                assert row.producer_epoch >= former.producer_epoch
                assert row.version >= former.version
                if row != former and not isinstance(command, c.CorrectTime):
                    assert row.version == after.index


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_a_client_that_was_fenced_changes_nothing(seed: int) -> None:
    """Only the present epoch enlists; whatever else is in the command."""
    for before, command, after, _ in histories(seed):
        if not isinstance(command, c.EnlistInTransactions):
            continue
        present = {
            enlistment.name
            for enlistment in command.enlistments
            if is_present(before.transactional_ids.get(enlistment.name), enlistment)
        }
        for name, row in after.transactional_ids.items():
            assert name in present or row == before.transactional_ids[name]


def is_present(row: KafkaTransactionalId | None, enlistment: c.Enlistment) -> bool:
    return row is not None and (row.producer_id, row.producer_epoch) == (
        enlistment.producer_id,
        enlistment.producer_epoch,
    )


def test_histories_reach_every_outcome() -> None:
    """Otherwise the tests above would show nothing."""
    seen: set[object] = set()
    for seed in range(30):
        for _, command, after, answers in histories(seed):
            seen.update((type(command).__name__, answer) for answer in answers)
            seen.update(row.last for row in after.transactional_ids.values())
            seen.add(("staging", bool(after.staging)))
    for wanted in (
        *(
            ("EnlistInTransactions", code)
            for code in ("", "stale_producer_epoch", "invalid_producer")
        ),
        ("EnlistInTransactions", "transaction_not_found"),
        *(("EndTransactions", code) for code in ("", "stale_version", "invalid_request")),
        ("EndTransactions", "transaction_not_found"),
        ("EndTransactions", "transaction_aborted"),
        "committed",
        "aborted",
        ("staging", True),
    ):
        assert wanted in seen, wanted
