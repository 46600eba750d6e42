"""One client on a blocking socket: answers whole or in pieces, bad ones, and servers that hang up."""

import socket
import threading

import pytest

from loadtest.bench.clients.http_load import Ask, HttpLoadError
from loadtest.bench.clients.one_client import http_is_whole, http_turn, repeat

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine"
ASK = Ask(requests=[b"first", b"second"], units=10, proof=b"fine")


@pytest.mark.parametrize("length", range(1, len(OK)))
def test_a_piece_of_an_answer_is_not_whole(length):
    assert not http_is_whole(ASK)(OK[:length])


def test_a_whole_answer_is():
    assert http_is_whole(ASK)(OK)
    assert http_is_whole(Ask(requests=[b"a"]))(b"HTTP/1.1 204 No Content\r\n\r\n")


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"more",
        OK.replace(b"fine", b"poor"),
        OK.replace(b"200 OK", b"503 Busy"),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_what_is_no_good_answer_is_refused(answer):
    with pytest.raises(HttpLoadError, match="it answered"):
        http_is_whole(ASK)(answer)


def test_work_is_done_once_at_least_and_timed():
    done = []
    latencies_s, took_s = repeat(lambda: done.append(1), 0)
    assert (len(done), len(latencies_s)) == (1, 1)
    assert took_s >= latencies_s[0] > 0


@pytest.fixture
def server():
    """Answers the first request in two pieces, then hangs up at the second."""
    seen = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            connection, _ = listener.accept()
            with connection:
                seen.append(connection.recv(1000))
                connection.sendall(OK[:10])
                connection.sendall(OK[10:])
                seen.append(connection.recv(1000))

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", seen
        thread.join()


def test_a_turn_counts_units(server):
    url, seen = server
    turn = http_turn(url, ASK, 0)
    assert (len(turn.latencies_s), turn.units) == (1, 10)
    assert seen[0] == b"first"


def test_a_server_that_hangs_up_is_an_error(server):
    url, seen = server
    with pytest.raises(HttpLoadError, match="closed the connection"):
        http_turn(url, ASK, 60)
    assert seen == [b"first", b"second"]
