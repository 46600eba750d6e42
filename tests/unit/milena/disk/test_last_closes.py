"""Descriptors of files without a name are closed on a thread, a bounded number of them."""

import threading

import pytest

from milena.disk.last_closes import WAITING_MAX, LastCloses


class Disk:
    """Closes as it goes where the disk takes its time: on the thread a close waits until it may."""

    def __init__(self):
        self.may_close = threading.Event()
        self.closed = []

    def close(self, descriptor):
        if threading.current_thread() is not threading.main_thread():
            assert self.may_close.wait(30)
        self.closed.append((descriptor, threading.current_thread() is threading.main_thread()))


@pytest.fixture
def disk():
    disk = Disk()
    yield disk
    disk.may_close.set()


def test_the_caller_does_not_wait_for_the_disk(disk):
    closes = LastCloses(disk.close)
    closes.close(-7)
    assert disk.closed == []
    disk.may_close.set()
    closes.stop()
    assert disk.closed == [(-7, False)]


def test_who_brings_one_too_many_closes_it_itself(disk):
    closes = LastCloses(disk.close)
    for number in range(WAITING_MAX + 1):
        closes.close(-1 - number)
    assert disk.closed == [(-1 - WAITING_MAX, True)]
    disk.may_close.set()
    closes.stop()
    assert len(disk.closed) == WAITING_MAX + 1


def test_after_its_end_every_caller_closes_itself(disk):
    closes = LastCloses(disk.close)
    closes.stop()
    closes.close(-7)
    assert disk.closed == [(-7, True)]
