"""Numbers keep their digits in every body that holds values; in any other place they are refused beyond 64 bits."""

import json
from collections.abc import Iterator

import pytest

from http_api.protocol.media import JSON_TYPE
from http_api.routes import ROUTES
from http_api.shapes.blocks import Shape
from tests.support.http.api_server import JSON_V2, NDJSON, V3
from tests.unit.http_api.serving.test_bodies import path_of

NUMBERS = [
    "0",
    "-0",
    "1.10",
    "-0.0",
    "1e5",
    "1E+5",
    "1.0e-7",
    "0.1000000000000000055511151231257827",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775809",
    "18446744073709551615",
    "18446744073709551616",
    "123456789012345678901234567890",
    "1e308",
    "1e-400",
    "4.9e-324",
]
VALUES = [
    *NUMBERS,
    *(f'{{"a":{number}}}' for number in NUMBERS),
    *(f'{{"a":[{number},"1.10"],"b":"\\"x\\" 1e5"}}' for number in NUMBERS),
    '{"d":1.50,"text":"18446744073709551616"}',
    "[[[1.10]]]",
    '"1.10"',
    "true",
]
REFUSED = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e400",
    "-1e400",
    "9" * 400,
    "01",
    "1.",
    ".5",
    "+1",
    "0x1",
    '"\\ud800"',
    '"\\udc00"',
    "[" * 5000 + "]" * 5000,
    '"\\x"',
]

NUMBERS_OUT_OF_BOUNDS = [
    "9223372036854775808",
    "-9223372036854775809",
    "18446744073709551616",
    "1" + "0" * 30,
    "1e30",
    "1.5",
    "-1e300",
]


def spaced(text: str) -> str:
    """The same with white space between its parts, as many clients write it."""
    return text.replace("{", "{ ").replace(":", " : ").replace("[", "[\n\t")


WAYS = {
    "v2": ("/topics/t", '{"records":[{"value":%s}]}', JSON_V2),
    "lines": ("/topics/t", "%s", NDJSON),
    "transaction": (
        "/transactions",
        '{"writes":[{"topic":"t","records":[{"value":%s}]}]}',
        JSON_V2,
    ),
    "v3": (f"{V3}/topics/t/records", '{"value":{"type":"JSON","data":%s}}', JSON_TYPE),
    "v3 batch": (
        f"{V3}/topics/t/records:batch",
        '{"entries":[{"id":"a","value":{"type":"JSON","data":%s}}]}',
        JSON_TYPE,
    ),
}


async def written(api, how: str, value: str) -> list[bytes | None]:
    """Send a value by one way; what was handed to the node."""
    path, body, type_ = WAYS[how]
    node = api.node
    lists = (node.produce_requests, node.quick_requests, node.transactions.requests)
    for requests in lists:
        requests.clear()
    answer = await api.post(path, (body % value).encode(), type_)
    assert answer.status < 500, answer.body
    found = [*node.produce_requests, *node.quick_requests]
    found += [write for one in node.transactions.requests for write in one.writes]
    return [stored for request in found for stored in request.records.values]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("value", VALUES)
async def test_a_value_is_stored_as_it_was_written(api, how, value):
    assert set(await written(api, how, value)) == {value.encode()}
    if how != "lines":
        assert set(await written(api, how, spaced(value))) == {value.encode()}


@pytest.mark.parametrize("value", VALUES)
async def test_keys_and_later_records_too(api, value):
    body = b'{"records" : [{"value":1},{"key":%b,"value":%b}]}' % ((value.encode(),) * 2)
    assert (await api.post("/topics/t", body)).status == 200
    records = api.node.produce_requests[-1].records
    assert (records.keys, records.values) == ([None, value.encode()], [b"1", value.encode()])


@pytest.mark.parametrize("value", VALUES)
async def test_streams_in_lines_too(api, value):
    line = b'{"value":{"type":"JSON","data":%b}}\n' % value.encode()
    await api.post(f"{V3}/topics/t/records", line * 3, "application/json")
    assert api.node.produce_requests[-1].records.values == [value.encode()] * 3


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("value", REFUSED)
async def test_what_is_no_json_or_no_number_is_refused(api, how, value):
    assert await written(api, how, value) == []


@pytest.mark.parametrize("how", sorted(WAYS.keys() - {"lines"}))
@pytest.mark.parametrize("text", ['"\\u00e9\\/"', '"é/"', '{"\\u0061":1.10,"b":"\\u00e9"}'])
async def test_a_string_has_one_form_however_it_is_written(api, how, text):
    """Else one key would be two, on two partitions."""
    plain = {'"\\u00e9\\/"': '"é/"'}.get(text, text.replace("\\u0061", "a").replace("\\u00e9", "é"))
    assert set(await written(api, how, text)) == {plain.encode()}


BODIES = [
    (route, part.example)
    for route in ROUTES
    if route.body is not None
    for part in route.body.content.values()
    if isinstance(part, Shape) and part.example is not None
]


def with_each_number(example: object, number: object) -> Iterator[object]:
    """The example with one of its numbers in the place of another one, for each of them."""
    match example:
        case bool():
            return
        case int():
            yield number
        case dict():
            for name, item in example.items():
                for one in with_each_number(item, number):
                    yield {**example, name: one}
        case list() | tuple():
            for place, item in enumerate(example):
                for one in with_each_number(item, number):
                    yield [*example[:place], one, *example[place + 1 :]]


async def test_numbers_beyond_64_bits_are_refused_by_every_endpoint(api):
    count = 0
    for route, example in BODIES:
        for number in NUMBERS_OUT_OF_BOUNDS:
            for body in with_each_number(example, "NUMBER"):
                text = json.dumps(body).replace('"NUMBER"', number)
                answer = await api.call(
                    route.method, path_of(route), data=text, headers={"Content-Type": JSON_V2}
                )
                # Within a record's value any number is a number.
                taken = answer.status == 200 and '"value"' in text
                assert 400 <= answer.status < 500 or taken, (route.path, text, answer.body)
                count += 1
    assert count > 200


@pytest.mark.parametrize("route", [r for r in ROUTES if r.body], ids=lambda r: r.operation_id)
async def test_no_body_is_a_fault_of_the_node(api, route):
    for text in (*REFUSED, *NUMBERS):
        for body in (f'{{"x":{text}}}', text, f'{{"records":[{{"value":1,"partition":{text}}}]}}'):
            answer = await api.call(
                route.method, path_of(route), data=body, headers={"Content-Type": JSON_V2}
            )
            assert answer.status < 500, (body, answer.body)
