import threading
from concurrent.futures import wait

import pytest

from node.process.sync_threads import SyncThreads

PATIENCE_S = 30.0


@pytest.fixture
def threads():
    made = SyncThreads(2, name="sync")
    yield made
    made.shutdown()


def name_of_this_thread():
    return threading.current_thread().name


def test_a_job_gives_its_result(threads):
    assert threads.submit(divmod, 7, 2).result(PATIENCE_S) == (3, 1)


def test_an_error_of_a_job_reaches_the_one_who_waits_and_the_thread_goes_on(threads):
    with pytest.raises(ZeroDivisionError):
        threads.submit(divmod, 7, 0).result(PATIENCE_S)
    assert threads.submit(divmod, 7, 2).result(PATIENCE_S) == (3, 1)


def test_jobs_one_after_the_other_share_a_thread(threads):
    names = {threads.submit(name_of_this_thread).result(PATIENCE_S) for _ in range(50)}
    assert names == {"sync_0"}


def test_a_job_does_not_wait_for_another_while_there_may_be_another_thread(threads):
    gate = threading.Event()
    held = threads.submit(gate.wait, PATIENCE_S)
    # Which of the two threads takes which job is not said.
    assert threads.submit(divmod, 7, 2).result(PATIENCE_S) == (3, 1)
    assert not held.done()
    gate.set()
    assert held.result(PATIENCE_S)


def test_more_jobs_than_threads_wait_and_all_are_done(threads):
    gate = threading.Event()
    held = [threads.submit(gate.wait, PATIENCE_S) for _ in range(2)]
    waiting = [threads.submit(name_of_this_thread) for _ in range(20)]
    assert not any(job.done() for job in waiting)
    gate.set()
    assert all(job.result(PATIENCE_S) for job in held)
    assert {job.result(PATIENCE_S) for job in waiting} <= {"sync_0", "sync_1"}


def test_a_job_that_a_callback_submits_is_done(threads):
    second = []
    done = threading.Event()

    def submit_another(_):
        second.append(threads.submit(name_of_this_thread))
        done.set()

    threads.submit(name_of_this_thread).add_done_callback(submit_another)
    assert done.wait(PATIENCE_S)
    assert second[0].result(PATIENCE_S) == "sync_0"


def test_a_submitted_job_cannot_be_cancelled(threads):
    gate = threading.Event()
    jobs = [threads.submit(gate.wait, PATIENCE_S) for _ in range(3)]
    assert not any(job.cancel() for job in jobs)
    gate.set()
    assert all(job.result(PATIENCE_S) for job in jobs)


def test_shutdown_finishes_what_was_submitted_and_takes_nothing_more():
    threads = SyncThreads(1, name="sync")
    gate = threading.Event()
    jobs = [threads.submit(gate.wait, PATIENCE_S) for _ in range(3)]
    gate.set()
    threads.shutdown()
    assert not wait(jobs, timeout=0).not_done
    with pytest.raises(RuntimeError):
        threads.submit(name_of_this_thread)
    assert not any(thread.name.startswith("sync") for thread in threading.enumerate())
