"""Descriptors are raised as far as they may be, and clients get no more than their share."""

import resource

from node.process import descriptors


def test_the_soft_limit_is_raised_to_the_hard_one(monkeypatch):
    made = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: made.append(limits))
    assert descriptors.raise_limit() == 4096
    assert made == [(4096, 4096)]


def test_a_limit_that_is_as_high_as_may_be_is_left_alone(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (4096, 4096))
    monkeypatch.setattr(resource, "setrlimit", None)
    assert descriptors.raise_limit() == 4096


def test_clients_get_what_they_ask_for_or_half_of_what_is_there():
    assert descriptors.affordable_connections(10_000, 1 << 20) == 10_000
    assert descriptors.affordable_connections(10_000, 4096) == 1792
    assert descriptors.affordable_connections(10_000, 256) == 1
    assert descriptors.affordable_connections(10_000, resource.RLIM_INFINITY) == 10_000
