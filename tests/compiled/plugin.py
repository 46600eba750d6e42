"""For tests that run on the compiled tree (``-p tests.compiled.plugin``): what they cannot ask of it.

A compiled class has no place for a test's own method, and a compiled function takes no stand-in of another class than
it was told. A test that tries is skipped, by the words of the refusal, which name the test's own doing; every other
``TypeError`` fails as ever. A few tests replace something without a refusal: compiled code just does not look there.
"""

import re

import pytest

STAND_IN = re.compile(
    r"object attribute '\w+' is read-only$|object expected; got (tests\.|object$)"
)

_RESPONSE = "test_an_error_ends_one_request_and_not_the_node"
_CHANGE = "test_an_error_in_the_middle_of_a_change_ends_the_node"

UNNOTICED = {
    "tests/unit/node/containment/test_entry_points.py": (
        f"{_RESPONSE}[a handler, after the log was looked at]",
        f"{_RESPONSE}[the quick lane, in a promise]",
        f"{_RESPONSE}[a forwarded write]",
        f"{_RESPONSE}[a forwarded write of the quick lane]",
        f"{_CHANGE}[an append]",
        f"{_CHANGE}[an append of a follower]",
        f"{_CHANGE}[the end of a sync]",
        f"{_CHANGE}[the leader's progress]",
        f"{_CHANGE}[a follower's acknowledgement]",
        f"{_CHANGE}[the high watermark of a follower]",
    ),
    "tests/unit/node/replica/test_scrubber.py": (
        "test_a_node_is_not_ready_while_another_replica_may_restore_what_the_leader_cannot_send",
    ),
    "tests/unit/node/replication/test_fetcher.py": (
        "test_an_unexpected_error_of_the_loop_is_contained_and_it_fetches_again",
        "test_an_error_in_the_middle_of_an_append_stops_the_node",
    ),
    "tests/unit/node/replication/test_fetch_server.py": (
        "test_snapshots_of_many_partitions_do_not_overflow_one_answer",
    ),
    "tests/unit/node/peers/test_port.py": (
        "test_calls_to_a_silent_peer_fail_and_new_ones_are_not_sent",
        "test_calls_to_a_doubtful_peer_are_held_back_until_it_speaks",
        "test_calls_held_back_for_a_peer_that_stays_silent_were_never_sent",
    ),
}
"""By file: tests, or single cases, that put a method of their own in the place of one, and wait for it to be called."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    try:
        return (yield)
    except (AttributeError, TypeError) as error:
        if STAND_IN.search(str(error)):
            pytest.skip(f"a stand-in: {error}")
        raise


def pytest_collection_modifyitems(config, items):
    gone = []
    for file, names in UNNOTICED.items():
        of_file = [item for item in items if item.nodeid.startswith(file + "::")]
        missing = {*names} - {name for item in of_file for name in (item.originalname, item.name)}
        assert not of_file or not missing, f"{file} has no {missing} any more"
        gone += [item for item in of_file if {item.originalname, item.name} & {*names}]
    config.hook.pytest_deselected(items=gone)
    items[:] = [item for item in items if item not in gone]
