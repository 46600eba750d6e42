"""Which node is asked first."""

import pytest

from milena.cluster.routing import DISTRUST_MS, NODES_MAX, NodeRoutes

A, B, C = "http://a:1", "http://b:1", "http://c:1"


def test_the_given_urls_are_all_there_is_at_first():
    assert NodeRoutes("a:1").order(None, 0) == [A]
    assert NodeRoutes(["a:1", "http://b:1/", "a:1"]).order(None, 0) == [A, B]
    with pytest.raises(ValueError, match="at least one node"):
        NodeRoutes([])


def test_the_preferred_node_comes_first_then_live_ones_then_the_given_urls():
    routes = NodeRoutes(A)
    routes.learn([B, C])
    assert routes.order(C, 0) == [C, B, A]


def test_the_node_that_answered_last_is_as_good_as_any():
    routes = NodeRoutes([A, B])
    routes.mark_good(B)
    assert routes.best(0) == B
    assert routes.order(None, 0) == [B, A]


def test_a_node_that_failed_goes_last_for_a_while():
    routes = NodeRoutes([A, B, C])
    routes.mark_bad(A, 100)
    routes.mark_bad(B, 200)
    assert routes.order(A, 200) == [C, A, B]
    assert routes.order(A, 100 + DISTRUST_MS) == [A, C, B]
    assert routes.order(None, 200 + DISTRUST_MS) == [A, B, C]


def test_a_node_that_answers_is_trusted_again():
    routes = NodeRoutes([A, B])
    routes.mark_bad(A, 100)
    routes.mark_good(A)
    assert routes.order(None, 100) == [A, B]


def test_nodes_that_left_the_cluster_are_forgotten():
    routes = NodeRoutes(A)
    routes.learn([B])
    routes.mark_bad(B, 0)
    routes.learn([C])
    assert routes.order(None, 0) == [A, C]
    routes.learn([B])
    assert routes.order(B, 0) == [B, A]


def test_no_more_nodes_are_remembered_than_a_cluster_has():
    routes = NodeRoutes(A)
    routes.learn(f"n{n}:1" for n in range(5 * NODES_MAX))
    assert len(routes.order(None, 0)) == NODES_MAX + 1
