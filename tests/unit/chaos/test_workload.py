"""What a record that was read is taken for, what an answer means, what a retry leaves unknown."""

import random

import pytest

from tests.chaos.adapter import Receipt, merge, read_receipts
from tests.chaos.disks import Disk, DiskError, damage_file
from tests.chaos.history import Outcome
from tests.chaos.reading import identify, make_value

OK, FAILED, UNKNOWN = Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN


def test_a_whole_record_is_known_by_its_name():
    assert identify("w0k1", make_value("w0k1:17", 64)) == "w0k1:17"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("w0k2", make_value("w0k1:17", 64)),
        (None, make_value("w0k1:17", 64)),
        ("w0k1", {**make_value("w0k1:17", 64), "pad": "0" * 64}),
        ("w0k1", {"id": "w0k1:17"}),
        ("w0k1", {**make_value("w0k1:17", 64), "more": 1}),
        ("w0k1", "w0k1:17"),
        ("w0k1", None),
    ],
)
def test_anything_else_is_damaged(key, value):
    assert identify(key, value).startswith("!damaged")


@pytest.mark.parametrize(
    ("status", "code", "outcome"),
    [
        (404, 40401, FAILED),
        (422, None, FAILED),
        (413, 413, FAILED),
        (503, 50303, FAILED),
        (503, 50306, FAILED),
        (408, 408, UNKNOWN),
        (429, 42901, UNKNOWN),
        (504, 50401, UNKNOWN),
        (500, 50002, UNKNOWN),
        (500, None, UNKNOWN),
        (200, None, UNKNOWN),
    ],
)
def test_an_error_is_a_failure_only_when_nothing_was_written(status, code, outcome):
    receipts = read_receipts(status, {"error_code": code}, 2)
    assert [r.outcome for r in receipts] == [outcome, outcome]


def test_receipts_are_read_one_by_one():
    answer = {
        "offsets": [
            {"partition": 0, "offset": 7, "error_code": None},
            {"partition": 0, "offset": None, "error_code": None},
            {"partition": None, "offset": None, "error_code": 50303},
            {"partition": None, "offset": None, "error_code": 50401},
        ]
    }
    receipts = read_receipts(200, answer, 4)
    assert [(r.outcome, r.offset) for r in receipts] == [
        (OK, 7), (OK, None), (FAILED, None), (UNKNOWN, None),
    ]  # fmt: skip


@pytest.mark.parametrize("answer", [None, "text", {"offsets": []}])
def test_a_success_without_receipts_is_unknown(answer):
    assert read_receipts(200, answer, 1)[0].outcome is UNKNOWN


@pytest.mark.parametrize(
    ("earlier", "later", "known"),
    [
        (UNKNOWN, FAILED, UNKNOWN),
        (UNKNOWN, OK, OK),
        (FAILED, FAILED, FAILED),
        (FAILED, UNKNOWN, UNKNOWN),
        (OK, FAILED, FAILED),
    ],
)
def test_a_refused_retry_does_not_settle_an_unknown_attempt(earlier, later, known):
    assert merge(Receipt(earlier), Receipt(later)).outcome is known


@pytest.fixture
def segment(tmp_path):
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(bytes(range(1, 256)) * 4 + bytes(4096))
    return path


def test_a_torn_tail_cuts_what_was_written_not_the_preallocated_zeros(segment):
    assert damage_file(segment, "torn", random.Random(1)).startswith("cut ")
    left = segment.read_bytes()
    assert 0 <= len(left) < 1020
    assert left == (bytes(range(1, 256)) * 4)[: len(left)]


def test_a_flip_changes_one_bit(segment):
    before = segment.read_bytes()
    damage_file(segment, "flip", random.Random(1))
    after = segment.read_bytes()
    assert sum((a ^ b).bit_count() for a, b in zip(before, after, strict=True)) == 1


def test_zeros_alone_are_left_alone(tmp_path):
    path = tmp_path / "0.log"
    path.write_bytes(bytes(100))
    assert damage_file(path, "torn", random.Random(1)) is None


def test_a_plain_disk_is_wiped_and_cannot_do_more(tmp_path):
    disk = Disk(tmp_path / "node1")
    (disk.data / "topics").mkdir()
    (disk.data / "identity").write_text("x")
    assert disk.damage("torn", random.Random(1)) == "nothing to damage"
    assert disk.wipe() == "removed 2 entries"
    assert list(disk.data.iterdir()) == []
    for impossible in (disk.fill, disk.cut_power):
        with pytest.raises(DiskError):
            impossible()
