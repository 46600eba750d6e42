"""What an answer, or the lack of one, means to the client."""

import pytest

from milena.admin import AdminClient, cluster_view
from milena.errors import (
    AnswerError,
    TargetExistsError,
    TargetNotFoundError,
    UnexpectedAnswerError,
    UnknownResultError,
    UnreachableError,
)
from milena.http import normalise_url, read_answer


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("localhost:8082", "http://localhost:8082"),
        ("http://localhost:8082/", "http://localhost:8082"),
        ("https://milena.example/api/", "https://milena.example/api"),
    ],
)
def test_urls_are_normalised(given, used):
    assert normalise_url(given) == used


@pytest.mark.parametrize(
    ("status", "message", "error"),
    [
        (404, "no", TargetNotFoundError),
        (409, "taken", TargetExistsError),
        (400, "Topic 'x' already exists.", TargetExistsError),
        (400, "bad name", AnswerError),
        (503, "no leader", AnswerError),
        (504, "not known", UnknownResultError),
    ],
)
def test_an_error_answer_becomes_its_own_error(status, message, error):
    raw = b'{"error_code": %d01, "message": "%s"}' % (status, message.encode())
    with pytest.raises(error, match=message) as caught:
        read_answer(status, raw, "GET /x")
    assert type(caught.value) is error
    assert (caught.value.status, caught.value.error_code) == (status, status * 100 + 1)


def test_an_error_without_a_body_still_has_a_sentence():
    with pytest.raises(AnswerError, match="GET /x: HTTP 500"):
        read_answer(500, b"", "GET /x")


def test_an_answer_that_is_not_json_is_unexpected():
    with pytest.raises(UnexpectedAnswerError, match="is this a Milena node"):
        read_answer(200, b"<html>", "GET /x")


@pytest.mark.parametrize("url", ["http://127.0.0.1:{port}", "http://", "http://bad host:1"])
async def test_no_connection_is_unreachable(url, unused_tcp_port):
    async with AdminClient(url.format(port=unused_tcp_port), timeout_s=1) as client:
        with pytest.raises(UnreachableError):
            await client.cluster()


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"version": "3"}, r"metadata.version: expected an integer"),
        ({"brokers": {}}, r"metadata.brokers: expected a list"),
        ({"brokers": [7]}, r"metadata.brokers\[0\]: expected a JSON object"),
        ({"topics": [{"name": None}]}, r"metadata.topics\[0\].(name|partitions): expected"),
    ],
)
def test_a_malformed_field_is_named(broken, message):
    answer = {"cluster_id": "c", "version": 3, "brokers": [], "topics": [], **broken}
    with pytest.raises(UnexpectedAnswerError, match=message):
        cluster_view(answer)
