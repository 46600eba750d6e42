"""What a replica's folder says about itself."""

import pytest
from msgspec.structs import replace

from milena.model.errors import CorruptLogError
from milena.model.types import ReplicaHealth
from storage.replica.meta import META_NAME, Change, ChangeKind, MetaFile, ReplicaMeta, worse
from storage.state.sealed import seal
from tests.support.disk.memory_files import MemoryFiles

META = ReplicaMeta(topic_id="ab" * 16, topic_name="orders", partition=3)
PATH = f"/replica/{META_NAME}"


@pytest.fixture
def files():
    files = MemoryFiles()
    files.make_directory("/replica")
    return files


@pytest.mark.parametrize(
    "meta",
    [
        META,
        replace(META, health=ReplicaHealth.SUSPECT),
        replace(META, change=Change(ChangeKind.RESTART, 1 << 40)),
        replace(META, topic_name="x" * 249, change=Change(ChangeKind.TRUNCATE, 0)),
    ],
)
def test_the_file_says_what_was_stored(files, meta):
    MetaFile(files, "/replica").store(meta)
    files.crash()
    assert MetaFile(files, "/replica").load() == meta


def test_a_folder_without_one_says_nothing(files):
    assert MetaFile(files, "/replica").load() is None


def test_it_is_replaced_on_a_full_disk(files):
    file = MetaFile(files, "/replica")
    file.store(META)
    files.capacity = files.used_bytes()
    file.store(replace(META, health=ReplicaHealth.SUSPECT))
    assert MetaFile(files, "/replica").load().health is ReplicaHealth.SUSPECT


def test_one_that_may_be_out_of_date_makes_the_replica_suspect_and_begins_nothing(files):
    """The lost part may have said that the change was done: doing it again would cut what came after."""
    file = MetaFile(files, "/replica")
    file.store(META)
    file.store(replace(META, change=Change(ChangeKind.RESTART, 100)))
    file.store(META)
    files.flip_bit(PATH, 8)
    loaded = MetaFile(files, "/replica").load()
    assert loaded == replace(META, health=ReplicaHealth.SUSPECT)


def test_a_damaged_one_is_refused(files):
    MetaFile(files, "/replica").store(META)
    files.flip_bit(PATH, 30)
    with pytest.raises(CorruptLogError):
        MetaFile(files, "/replica").load()


@pytest.mark.parametrize(
    "value",
    [
        None,
        ["ab", "orders"],
        [1, "orders", 3, "sound", None],
        ["ab", None, 3, "sound", None],
        ["ab", "orders", "3", "sound", None],
        ["ab", "orders", 3, "cheerful", None],
        ["ab", "orders", 3, "sound", ["explode", 5]],
        ["ab", "orders", 3, "sound", ["truncate", "5"]],
        ["ab", "orders", 3, "sound", ["truncate"]],
    ],
)
def test_one_of_another_shape_is_refused(value):
    with pytest.raises(CorruptLogError):
        ReplicaMeta.decode(seal(b"MRM1", value))


def test_the_worse_verdict_wins():
    sound, suspect, damaged = ReplicaHealth
    assert worse(sound, sound) is sound
    assert worse(suspect, sound) is suspect
    assert worse(suspect, damaged) is damaged
