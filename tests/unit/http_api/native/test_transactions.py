"""Transactions over HTTP: what a request asks for reaches the node as it was meant, and wrong ones are told why."""

import pytest

from milena.model.errors import FateUnknownError
from milena.model.requests import (
    CommittedNext,
    GroupOffsets,
    OpenTransaction,
    ProducerTransaction,
    WrittenExtent,
)
from milena.model.turns import LARGE_BYTES, Turns
from tests.support.http.api_server import BATCH, BINARY_V2, JSON_V2, V3
from tests.unit.http_api.v2.test_v2_produce import encoded

JSON = "application/json"
WRITES = [
    {"topic": "t", "records": [{"value": 1}]},
    {"topic": "u", "partition": 0, "records": [{"value": "x"}]},
]
ONE = ProducerTransaction(producer_id=7, producer_epoch=2, timeout_ms=500)
NAMED = {"Milena-Transaction": "7:2:500"}


@pytest.fixture(autouse=True)
def topics(api):
    api.node.add_topic("t", 1)
    api.node.add_topic("u", 1)
    api.node.transactions.keep_open(7, 2)


async def transact(api, body, type_=JSON, **headers):
    return await api.post("/transactions", body, type_, headers=headers)


class TestOneRequest:
    async def test_writes_and_offsets_reach_the_node_and_receipts_come_back(self, api):
        rows = [
            {"group": "g", "topic": "t", "partition": 0, "next_offset": 4},
            {
                "group": "m",
                "member_id": "c1",
                "member_epoch": 3,
                "topic": "t",
                "partition": 0,
                "next_offset": 5,
                "metadata": "x",
            },
            {"group": "g", "topic": "u", "partition": 0, "next_offset": 6},
        ]
        answer = await transact(api, {"writes": WRITES, "offsets": rows})
        assert answer.status == 200
        assert answer.json["committed"] is answer.json["visible"] is True
        assert [[r["offset"] for r in w["offsets"]] for w in answer.json["writes"]] == [[0], [0]]
        (request,) = api.node.transactions.requests
        assert [(w.topic, w.partition, w.records.values) for w in request.writes] == [
            ("t", None, [b"1"]),
            ("u", 0, [b'"x"']),
        ]
        assert request.offsets == (
            GroupOffsets(
                group="g",
                member_id=None,
                member_epoch=-1,
                offsets=(
                    CommittedNext(topic="t", partition=0, next_offset=4),
                    CommittedNext(topic="u", partition=0, next_offset=6),
                ),
            ),
            GroupOffsets(
                group="m",
                member_id="c1",
                member_epoch=3,
                offsets=(CommittedNext(topic="t", partition=0, next_offset=5, metadata="x"),),
            ),
        )

    async def test_a_large_body_takes_room_as_that_of_a_produce_request_does(
        self, api, monkeypatch
    ):
        entered = []
        room = Turns.room

        def watched(turns, size_bytes, *, wait_ms):
            entered.append((size_bytes, wait_ms))
            return room(turns, size_bytes, wait_ms=wait_ms)

        monkeypatch.setattr(Turns, "room", watched)
        records = [{"value": "x" * LARGE_BYTES}]
        assert (await transact(api, {"writes": WRITES})).status == 200
        assert not entered
        body = {"writes": [{"topic": "t", "records": records}]}
        assert (await api.post("/transactions?timeout_ms=700", body, JSON)).status == 200
        ((size_bytes, wait_ms),) = entered
        assert size_bytes > LARGE_BYTES
        assert wait_ms == 700

    async def test_the_type_says_how_values_are_written(self, api):
        body = {"writes": [{"topic": "t", "records": [{"key": "aw==", "value": "AAE="}]}]}
        assert (await transact(api, body, BINARY_V2)).status == 200
        (request,) = api.node.transactions.requests
        assert (request.writes[0].records.keys, request.writes[0].records.values) == (
            [b"k"],
            [b"\0\1"],
        )
        assert (await transact(api, b"x", BATCH)).status == 415

    async def test_long_numbers_keep_their_digits_in_every_write(self, api):
        text = (
            b'{"writes":[{"topic":"t","records":[{"value":1}]},'
            b'{"topic":"u","records":[{"value":123456789012345678901234567890}]}]}'
        )
        assert (await transact(api, text)).status == 200
        (request,) = api.node.transactions.requests
        assert request.writes[1].records.values == [b"123456789012345678901234567890"]

    async def test_a_key_is_of_the_whole_body_and_a_repeat_is_told(self, api):
        body = {"writes": WRITES}
        first = await transact(api, body, **{"Idempotency-Key": "k"})
        again = await transact(api, body, **{"Idempotency-Key": "k"})
        assert (first.json["is_duplicate"], again.json["is_duplicate"]) == (False, True)
        assert again.json["writes"] == first.json["writes"]
        other = await transact(api, {"writes": WRITES[:1]}, **{"Idempotency-Key": "k"})
        assert other.error == (422, 42211)

    @pytest.mark.parametrize(
        ("body", "error", "told"),
        [
            ({}, (422, 422), "both are empty"),
            ({"writes": [{"topic": "t"}]}, (422, 422), "'records'"),
            ({"writes": [{"topic": "t", "records": []}]}, None, "records"),
            ({"writes": [{"records": [{"value": 1}]}]}, (422, 422), "'topic'"),
            ({"write": WRITES}, (422, 422), "Unrecognized field: write"),
            ({"writes": WRITES * 51}, (422, 422), "too many"),
            (
                {"offsets": [{"group": "g", "topic": "t", "partition": 0}]},
                (422, 422),
                "next_offset",
            ),
            (
                {
                    "offsets": [
                        {
                            "group": "g",
                            "topic": "t",
                            "partition": 0,
                            "next_offset": 1,
                            "member_id": "m",
                        }
                    ]
                },
                (422, 422),
                "belong together",
            ),
        ],
    )
    async def test_a_body_that_is_wrong_is_told_what_to_change(self, api, body, error, told):
        answer = await transact(api, body)
        assert error is None or answer.error == error
        assert answer.status >= 400
        assert told in answer.json["message"]
        assert not api.node.transactions.requests

    async def test_offsets_alone_take_no_key(self, api):
        body = {"offsets": [{"group": "g", "topic": "t", "partition": 0, "next_offset": 1}]}
        assert (await transact(api, body)).status == 200
        refused = await transact(api, body, **{"Idempotency-Key": "k"})
        assert refused.error == (422, 422)
        assert "send them without" in refused.json["message"]

    async def test_an_unknown_fate_is_504(self, api):
        api.node.errors["transact"] = FateUnknownError("nobody knows")
        assert (await transact(api, {"writes": WRITES})).error == (504, 50401)


class TestSessions:
    async def test_begin_gives_what_writes_are_to_name(self, api):
        answer = await api.post(
            "/transactions:begin", {"transactional_id": "me", "timeout_ms": 9}, JSON
        )
        assert answer.json["transaction"] == (
            f"{answer.json['producer_id']}:{answer.json['producer_epoch']}:9"
        )
        assert api.node.transactions.begun == [("me", 9)]

    @pytest.mark.parametrize("name", ["", "x" * 256, "a\n", "milena.transactions.1.0"])
    async def test_names_that_no_producer_may_have_are_refused(self, api, name):
        body = {"transactional_id": name}
        assert (await api.post("/transactions:begin", body, JSON)).status == 422
        if name:
            assert (await api.post("/producers", {"name": name}, JSON)).status == 422

    @pytest.mark.parametrize("timeout_ms", [0, 900_001])
    async def test_nor_a_time_that_none_may_be_open(self, api, timeout_ms):
        body = {"transactional_id": "me", "timeout_ms": timeout_ms}
        assert (await api.post("/transactions:begin", body, JSON)).error == (422, 422)

    @pytest.mark.parametrize(
        "path", ["/topics/t", "/topics/t/partitions/0", "/topics/t/partitions/0/records"]
    )
    async def test_a_write_belongs_to_what_its_header_names(self, api, path):
        body = {"records": [{"value": 1}]}
        for _ in range(3):
            # The same head again and again: none of them goes past it.
            assert (await api.post(path, body, JSON_V2, headers=NAMED)).status == 200
        assert [request.transaction for request in api.node.produce_requests] == [ONE] * 3

    async def test_so_do_v3_records_and_encoded_batches(self, api):
        answer = await api.post(
            f"{V3}/topics/t/records", {"value": {"type": "JSON", "data": 1}}, JSON, headers=NAMED
        )
        assert answer.status == 200
        assert api.node.produce_requests[-1].transaction == ONE
        sent = await api.post("/topics/t/partitions/0/records", encoded(b"x"), BATCH, headers=NAMED)
        assert sent.status == 200

    @pytest.mark.parametrize(
        ("named", "path"),
        [
            ("7", "/topics/t"),
            ("7:2:0", "/topics/t"),
            ("7:2:900001", "/topics/t"),
            ("7:-1", "/topics/t"),
            ("7:32767", "/topics/t"),
            ("7:99999:500", "/topics/t"),
            ("7:2:1:1", "/topics/t"),
            ("7:2", "/topics/t?acks=1"),
            ("7:2", "/topics/t?async=true"),
        ],
    )
    async def test_what_it_cannot_be_is_malformed(self, api, named, path):
        body = {"records": [{"value": 1}]}
        answer = await api.post(path, body, JSON_V2, headers={"Milena-Transaction": named})
        assert answer.error == (400, 400)
        assert not api.node.produce_requests

    async def test_a_write_of_one_is_not_conditional(self, api):
        headers = {**NAMED, "If-Match": '"0"'}
        body = {"records": [{"value": 1}]}
        assert (
            await api.post("/topics/t/partitions/0", body, JSON_V2, headers=headers)
        ).status == 400

    async def test_a_key_in_one_is_another_than_outside(self, api):
        body = {"records": [{"value": 1}]}
        for headers in (NAMED, {"Milena-Transaction": "7:3"}, {}):
            await api.post("/topics/t", body, JSON_V2, headers={**headers, "Idempotency-Key": "k"})
        hashes = {request.idempotency.key_hash for request in api.node.produce_requests}
        assert len(hashes) == 3

    async def test_commit_and_abort_answer_the_next_epoch(self, api):
        body = {"writes": [{"topic": "t", "partition": 0, "end_offset": 9, "records": 2}]}
        for _ in range(2):
            answer = await api.post("/transactions/7/2:commit", body, JSON)
            assert answer.json == {"committed": True, "visible": True, "next_epoch": 3}
        commit = api.node.transactions.commits[0]
        assert commit.writes == (WrittenExtent(topic="t", partition=0, end_offset=9, records=2),)
        assert commit.until_visible
        assert (await api.post("/transactions/7/2:abort", {}, JSON)).error == (409, 40927)
        assert (await api.post("/transactions/7/3:abort", {}, JSON)).json == {
            "aborted": True,
            "visible": True,
            "next_epoch": 4,
        }
        assert (await api.post("/transactions/7/3:commit", body, JSON)).error == (409, 40926)
        assert (await api.post("/transactions/8/0:commit", body, JSON)).error == (404, 40412)

    @pytest.mark.parametrize(
        ("path", "told"),
        [
            ("/transactions/x/0:commit", "'producer_id' got 'x': not an integer"),
            ("/transactions/1/-1:commit", ""),
            ("/transactions/1/32767:commit", ""),
            ("/transactions/1/99999999999999999999:abort", "'producer_epoch' got"),
        ],
    )
    async def test_names_that_are_no_numbers_are_malformed(self, api, path, told):
        answer = await api.post(path, {}, JSON)
        assert answer.error == (400, 400)
        assert told in answer.json["message"]

    @pytest.mark.parametrize("body", [{}, {"writes": None}, {"offsets": []}])
    async def test_a_commit_says_what_was_written_even_if_nothing_was(self, api, body):
        """What it does not name is aborted: who leaves the list out may have forgotten it."""
        answer = await api.post("/transactions/7/2:commit", body, JSON)
        assert answer.error == (422, 422)
        assert "'writes'" in answer.json["message"]
        assert not api.node.transactions.commits
        assert (await api.post("/transactions/7/2:commit", {"writes": []}, JSON)).status == 200

    async def test_a_commit_may_be_answered_once_it_is_decided(self, api):
        path = "/transactions/7/2:commit?until="
        assert (await api.post(path + "committed", {"writes": []}, JSON)).status == 200
        assert not api.node.transactions.commits[0].until_visible
        answer = await api.post(path + "soon", {"writes": []}, JSON)
        assert answer.error == (400, 400)
        assert "use visible or committed" in answer.json["message"]

    async def test_a_commit_that_names_a_partition_twice_is_refused(self, api):
        row = {"topic": "t", "partition": 0, "end_offset": 9, "records": 2}
        assert (await api.post("/transactions/7/2:commit", {"writes": [row, row]}, JSON)).error == (
            422,
            422,
        )

    async def test_open_ones_are_told_by_transaction(self, api):
        common = {
            "producer_epoch": 0,
            "records": 1,
            "timeout_ms": 5,
            "leader": 1,
            "state": "open",
            "producer_name": "me",
        }
        api.node.transactions.open = [
            OpenTransaction(
                topic="t", partition=0, producer_id=1, first_offset=4, began_ms=10, **common
            ),
            OpenTransaction(
                topic="u", partition=0, producer_id=1, first_offset=2, began_ms=12, **common
            ),
        ]
        api.node.transactions.silent = [3]
        answer = (await api.get("/transactions")).json
        assert answer["silent_nodes"] == [3]
        (row,) = answer["transactions"]
        assert (row["transactional_id"], row["began_ms"], row["state"]) == ("me", 10, "open")
        assert [part["first_offset"] for part in row["partitions"]] == [4, 2]


class TestReading:
    @pytest.mark.parametrize(
        "query", ["", "?isolation=read_committed", "?isolation=read_uncommitted"]
    )
    async def test_reading_is_committed_unless_asked_otherwise(self, api, query):
        assert (await api.get(f"/topics/t/partitions/0/records{query}")).status == 200
        assert api.node.fetch_requests[-1].is_uncommitted == query.endswith("read_uncommitted")

    async def test_another_word_is_malformed(self, api):
        answer = await api.get("/topics/t/partitions/0/records?isolation=dirty")
        assert answer.error == (400, 400)
