"""If-Match: a write names the offset where it is to be, which a read has told it."""

import pytest
from multidict import CIMultiDict

from milena.model.errors import FeatureLevelError, PreconditionFailedError
from milena.model.requests import IdempotencyKey
from tests.support.http.api_server import BATCH, BINARY_V2, JSON_V2, V3
from tests.unit.http_api.v2.test_v2_produce import encoded

RECORDS = {"records": [{"value": 1}, {"value": 2}]}
PATHS = ("/topics/t", "/topics/t/partitions/0", "/topics/t/partitions/0/records")
TAG = "0" * 12
"""Of the topic."""


@pytest.fixture(autouse=True)
def topic(api):
    api.node.add_topic("t", 1)
    api.node.append("t", 0, [b"0", b"1"])


async def write(api, if_match, path=PATHS[1], body=RECORDS, type_=JSON_V2, **headers):
    return await api.post(path, body, type_, headers={"If-Match": if_match, **headers})


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("if_match", ['"2"', "2", '"0000000000000000002"', f'"{TAG}.2"'])
async def test_records_are_written_where_the_partition_ends_as_named(api, path, if_match):
    answer = await write(api, if_match, path)
    assert answer.status == 200
    assert [item["offset"] for item in answer.json["offsets"]] == [2, 3]
    assert [request.expected_end for request in api.node.produce_requests] == [2]


@pytest.mark.parametrize("path", PATHS)
async def test_else_the_answer_is_412_and_says_where_it_ends(api, path):
    answer = await write(api, '"1"', path)
    assert answer.status == 412
    assert answer.headers["Milena-Error"] == "precondition_failed"
    assert answer.json == {
        "error_code": 412,
        "message": "it ends at 2, not at 1; nothing was written",
        "end_offset": 2,
    }
    assert api.node.logs["t", 0].high_watermark == 2


async def test_an_encoded_batch_takes_a_condition_too(api):
    path = PATHS[2]
    assert (await write(api, '"2"', path, encoded(b"x"), BATCH)).json["base_offset"] == 2
    refused = await write(api, '"2"', path, encoded(b"x"), BATCH)
    assert (refused.status, refused.json["end_offset"]) == (412, 3)


async def test_so_do_other_formats_of_records(api):
    answer = await write(api, "2", body={"records": [{"value": "AA=="}]}, type_=BINARY_V2)
    assert answer.json["offsets"][0]["offset"] == 2
    assert (await write(api, "3", body=b"a\nb", type_="text/plain")).status == 200
    assert (await write(api, "3", body=b"a\nb", type_="text/plain")).status == 412


@pytest.mark.parametrize(
    "if_match",
    [
        "*", '"*"', 'W/"2"', "W/2", '"2", "3"', "2,3", "", '""', '"', "-1", "two", '"2', "0x2", "٢", "1" * 20,
        f'"{TAG}."', f'"{TAG[1:]}.2"', f"{TAG}.2", f'"{TAG.replace("0", "F")}.2"',
    ],
)  # fmt: skip
async def test_what_is_not_one_offset_is_refused(api, if_match):
    answer = await write(api, if_match)
    assert answer.error == (400, 400)
    assert "If-Match" in answer.json["message"]
    assert not api.node.produce_requests


async def test_two_values_are_refused_and_one_that_comes_twice_counts_once(api):
    headers = CIMultiDict([("If-Match", '"2"'), ("If-Match", '"3"')])
    answer = await api.call("POST", PATHS[1], json=RECORDS, headers=headers)
    assert answer.error == (400, 400)
    assert answer.json["message"] == "the header 'if-match' came with two values: send one"
    headers = CIMultiDict([("If-Match", '"2"'), ("If-Match", '"2"')])
    answer = await api.call("POST", PATHS[1], json=RECORDS, headers=headers)
    assert [receipt["offset"] for receipt in answer.json["offsets"]] == [2, 3]


@pytest.mark.parametrize("query", ["?acks=0", "?async=true", "?async=true&acks=all"])
@pytest.mark.parametrize("body", [RECORDS, b"batch"])
async def test_who_wants_no_answer_cannot_have_a_condition(api, query, body):
    type_ = BATCH if isinstance(body, bytes) else JSON_V2
    answer = await write(api, '"2"', PATHS[2] + query, body, type_)
    assert answer.error == (400, 400)
    assert "no response says whether If-Match held" in answer.json["message"]
    assert api.node.logs["t", 0].high_watermark == 2


async def test_acks_one_may(api):
    assert (await write(api, '"2"', PATHS[1] + "?acks=1")).status == 200


async def test_records_for_whichever_partition_cannot_have_one(api):
    api.node.add_topic("many", 4)
    refused = await write(api, "0", "/topics/many")
    assert refused.error == (400, 400)
    assert "the end of one partition" in refused.json["message"]
    named = {"records": [{"value": 1, "partition": 3}, {"value": 2, "partition": 3}]}
    assert (await write(api, "0", "/topics/many", named)).json["offsets"][1]["offset"] == 1


async def test_a_record_that_leaves_the_paths_partition_is_refused_with_all(api):
    api.node.add_topic("many", 4)
    scattered = {"records": [{"value": 1}, {"value": 2, "partition": 3}]}
    assert (await write(api, "0", "/topics/many/partitions/1", scattered)).error == (400, 400)


async def test_a_repeat_under_a_key_gets_its_first_answer_and_without_412(api):
    headers = {"Idempotency-Key": "k"}
    first = await write(api, '"2"', **headers)
    again = await write(api, '"2"', **headers)
    assert again.json == first.json
    assert (await write(api, '"2"')).status == 412


async def test_the_condition_is_no_part_of_what_a_key_stands_for(api):
    # Who does not know whether it was written may read on, and send the same again with what he read.
    first = await write(api, '"2"', **{"Idempotency-Key": "k"})
    again = await write(api, '"4"', **{"Idempotency-Key": "k"})
    assert again.json == first.json
    keys = {request.idempotency for request in api.node.produce_requests}
    assert len(keys) == 1
    assert isinstance(keys.pop(), IdempotencyKey)


async def test_a_small_write_under_a_condition_never_takes_the_short_cut(api):
    for _ in range(3):
        await api.post(PATHS[1], RECORDS, JSON_V2)
    before = len(api.node.quick_requests)
    for _ in range(3):
        await write(api, '"2"')
    assert len(api.node.quick_requests) == before
    assert api.node.produce_requests[-1].expected_end == 2


@pytest.mark.parametrize("path", [f"{V3}/topics/t/records", "/producers"])
async def test_other_endpoints_refuse_it_as_ever(api, path):
    answer = await write(api, '"2"', path, {}, "application/json")
    assert answer.error == (400, 400)
    assert "knows no conditions" in answer.json["message"]


async def test_a_leader_of_an_earlier_release_is_named(api):
    api.node.errors["produce"] = FeatureLevelError("broker 2 is of a release without")
    assert (await write(api, '"2"')).error == (409, 40913)


async def test_a_peer_that_did_not_say_where_it_ends_is_no_fault(api):
    api.node.errors["produce"] = PreconditionFailedError("elsewhere")
    assert (await write(api, '"2"')).json == {"error_code": 412, "message": "elsewhere"}


# -- what reads tell


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("path", "etag"),
    [
        ("records", '"2"'),
        ("records?count=1", '"1"'),
        ("records?offset=latest", '"2"'),
        ("offsets", '"2"'),
    ],
)
async def test_a_read_tells_the_next_offset_as_its_tag(api, method, path, etag):
    answer = await api.call(method, f"{PATHS[1]}/{path}")
    assert answer.headers["ETag"] == f'"{TAG}.{etag[1:]}'


async def test_the_tag_of_who_has_read_all_is_the_end_and_of_who_has_not_is_refused(api):
    for query, status in (("?count=1", 412), ("", 200)):
        read = await api.get(f"{PATHS[2]}{query}")
        assert (await write(api, read.headers["ETag"])).status == status


@pytest.mark.parametrize("path", ["records", "offsets"])
async def test_a_tag_of_a_topic_that_was_made_again_holds_no_more(api, path):
    tag = (await api.get(f"{PATHS[1]}/{path}")).headers["ETag"]
    assert (await write(api, tag)).status == 200
    tag = (await api.get(f"{PATHS[1]}/{path}")).headers["ETag"]
    api.node.make_again("t")
    api.node.append("t", 0, [b"1", b"2", b"3"])
    assert (await write(api, tag)).status == 412
    assert (await write(api, '"3"')).status == 200, "it names no topic"


async def test_a_read_takes_no_condition(api):
    assert (await api.get(PATHS[2], headers={"If-Match": '"2"'})).error == (400, 400)
