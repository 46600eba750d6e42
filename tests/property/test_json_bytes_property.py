"""The client's JSON serializer makes the bytes that a node stores for the same JSON."""

import json

from hypothesis import example, given
from hypothesis import strategies as st

from http_api.formats.envelope import decode_envelope
from http_api.formats.json_v2 import encode_items
from milena.model.turns import at_once
from milena.producing.serializers import json_bytes

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(VALUES.filter(lambda value: value is not None))
@example("u1")
@example('1e+16 "1e-05" \\')
@example(1e16)
@example(1.5e-05)
@example(-1e-05)
@example(9.999e-05)
@example(1e-07)
@example(-0.0)
@example(5e-324)
@example([1e22, {"é\u2028\x7f\x00\n/": 2**70}])
def test_a_node_stores_the_same_bytes(value):
    sent = {"records": [{"key": value, "value": value}]}
    for body in (json.dumps(sent), json.dumps(sent, ensure_ascii=False, indent=1)):
        stored = at_once(decode_envelope(encode_items, body.encode(), records_max=1))
        ours = json_bytes(value)
        assert list(stored.keys) == [ours]
        assert list(stored.values) == [ours]
