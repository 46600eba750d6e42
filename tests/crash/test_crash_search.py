"""The short form of the crash search, and faults planted in the code that it must find."""

import pytest

from storage.log.tickets import SyncTicket
from storage.replica.folder import ReplicaFiles
from storage.state.slots import SlotFile
from tests.crash.scenarios import SCENARIOS
from tests.crash.search import FULL, SHORT, CrashSearchError, Scenario, Search
from tests.support.disk.memory_files import MemoryFile, MemoryFiles

LONGER = {
    "checkpoint-unsynced",
    "raft-compact",
    "truncate-across",
    "updates-between-slices",
    "updates-compacted",
}
"""Take seconds each, and wait for the second lane."""


def scenario_of(name: str) -> Scenario:
    return next(scenario for scenario in SCENARIOS if scenario.name == name)


@pytest.mark.parametrize(
    "scenario",
    [pytest.param(s, marks=pytest.mark.deep) if s.name in LONGER else s for s in SCENARIOS],
    ids=lambda scenario: scenario.name,
)
def test_no_crash_breaks_a_promise(scenario):
    counts = Search(scenario, SHORT).run()
    print(scenario.name, counts)
    assert counts.boundaries > 1
    assert counts.states > counts.boundaries


@pytest.mark.long
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_no_crash_breaks_a_promise_in_the_full_search(scenario):
    Search(scenario, FULL).run()


def test_a_search_is_repeatable():
    first = Search(scenario_of("append"), SHORT).run()
    assert Search(scenario_of("append"), SHORT).run() == first


def require_found(name):
    with pytest.raises(CrashSearchError) as found:
        Search(scenario_of(name), SHORT).run()
    assert f"replay: python -m tests.crash --scenario {name}" in str(found.value)


def test_it_finds_an_append_that_is_not_synced(monkeypatch):
    monkeypatch.setattr(SyncTicket, "run", lambda ticket: None)
    require_found("append")


def test_it_finds_a_segment_whose_name_is_not_synced(monkeypatch):
    def run(ticket):
        for _, file in ticket._pinned:
            file.sync()

    monkeypatch.setattr(SyncTicket, "run", run)
    require_found("roll")


def test_it_finds_a_small_file_that_is_renamed_before_its_bytes_are_synced(monkeypatch):
    def write(files, path, content):
        file = files.open(path + ".tmp", create=True)
        file.truncate(0)
        file.pwritev([content], 0)
        files.rename_durably(path + ".tmp", path)

    monkeypatch.setattr(MemoryFiles, "write_atomically", write)
    require_found("directory-made")


def test_it_finds_a_checkpoint_that_is_not_synced(monkeypatch):
    store, sync = SlotFile.store, MemoryFile.sync

    def stored(slots, content):
        monkeypatch.setattr(MemoryFile, "sync", lambda file: None)
        try:
            store(slots, content)
        finally:
            monkeypatch.setattr(MemoryFile, "sync", sync)

    monkeypatch.setattr(SlotFile, "store", stored)
    require_found("log-start")


def test_it_finds_a_truncation_that_forgets_to_lower_the_recovery_point(monkeypatch):
    monkeypatch.setattr(ReplicaFiles, "lower_checkpoint", lambda replica, offset: None)
    require_found("truncate-across")


def test_it_finds_a_cut_that_is_forgotten(monkeypatch):
    store = ReplicaFiles.store_meta

    def in_memory(replica, meta):
        if meta.health is replica.meta.health:
            store(replica, meta)
        replica.meta = meta

    monkeypatch.setattr(ReplicaFiles, "store_meta", in_memory)
    require_found("roll")
