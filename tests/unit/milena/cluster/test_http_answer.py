"""One answer out of the bytes of a connection, however they are cut, and whatever a hostile peer sends."""

import pytest

from milena.cluster.http_answer import (
    HEAD_BYTES_MAX,
    AnswerReader,
    AnswerTooLargeError,
    BrokenAnswerError,
)

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nMilena-Next-Offset: 7\r\n\r\nhello"
CHUNKS = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    b"2\r\nhe\r\n3;name=value\r\nllo\r\n0\r\nTrailer: x\r\n\r\n"
)
CLOSE = b"HTTP/1.1 200\r\n\r\nhello"
EARLY = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + LENGTH
NOTHING = b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n"


def read(*pieces, bytes_max=100):
    reader = AnswerReader(body_bytes_max=bytes_max)
    for piece in pieces:
        reader.feed(piece)
    return reader


@pytest.mark.parametrize(
    ("answer", "body", "is_reusable"),
    [
        (LENGTH, b"hello", True),
        (CHUNKS, b"hello", True),
        (CLOSE, b"hello", False),
        (EARLY, b"hello", True),
        (NOTHING, b"", True),
        (LENGTH.replace(b"\r\n\r\n", b"\r\nConnection: Close\r\n\r\n"), b"hello", False),
        (LENGTH.replace(b"HTTP/1.1", b"HTTP/1.0"), b"hello", False),
        (LENGTH.replace(b"5", b"0").replace(b"hello", b""), b"", True),
    ],
)
def test_an_answer_is_the_same_however_its_bytes_are_cut(answer, body, is_reusable):
    cuts = [[answer], [answer[i : i + 1] for i in range(len(answer))]]
    cuts += [[answer[:cut], answer[cut:]] for cut in range(1, len(answer))]
    for pieces in cuts:
        reader = read(*pieces)
        assert reader.is_whole == (answer is not CLOSE)
        reader_end = AnswerReader(body_bytes_max=100)
        wholes = [reader_end.feed(piece) for piece in pieces]
        assert wholes[:-1] == [False] * (len(wholes) - 1)
        assert reader.is_reusable == is_reusable
        assert reader.is_whole or reader.end()
        assert (reader.body, reader.has_begun) == (body, True)


def test_headers_are_found_in_any_case_and_the_first_of_a_name_counts():
    reader = read(b"HTTP/1.1 404 Not Found\r\nMilena-Error:  a b \r\nMILENA-ERROR: c\r\n\r\n")
    assert reader.status == 404
    assert reader.headers["milena-error"] == reader.headers["Milena-Error"] == "a b"
    assert "Milena-Other" not in reader.headers
    assert list(reader.headers) == ["milena-error"]


@pytest.mark.parametrize("answer", [LENGTH, CHUNKS])
def test_an_end_in_the_middle_leaves_an_answer_that_is_not_whole(answer):
    for cut in range(1, len(answer)):
        assert not read(answer[:cut]).end()


@pytest.mark.parametrize("answer", [LENGTH, CHUNKS, NOTHING])
def test_a_connection_with_bytes_that_nobody_asked_for_is_not_used_again(answer):
    assert not read(answer + b"HTTP/1.1 200 OK\r\n").is_reusable
    reader = read(answer)
    assert reader.is_reusable
    assert reader.feed(b"x")
    assert not reader.is_reusable


@pytest.mark.parametrize(
    "answer",
    [
        b"\x15\x03\x01\x00\x02\x02\x16\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 99 OK\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nNo colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nName : a\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0" * 2 * HEAD_BYTES_MAX,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"x" * 2 * HEAD_BYTES_MAX,
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * HEAD_BYTES_MAX,
    ],
)
def test_what_is_no_answer_is_told_from_one(answer):
    with pytest.raises(BrokenAnswerError):
        read(answer)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"a\r\n0123456789\r\n" * 11,
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 101,
    ],
)
def test_a_body_above_the_bound_is_known_before_it_is_held(answer):
    with pytest.raises(AnswerTooLargeError):
        read(answer)
