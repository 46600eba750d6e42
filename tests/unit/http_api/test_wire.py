"""Recorded exchanges: what clients of all kinds rely on, byte for byte but for spaces.

They are asked in order of one node in memory with a topic ``t`` of one partition.
"""

from pathlib import Path

import orjson

from tests.support.http.api_server import serving

EXCHANGES = Path(__file__).parents[2] / "data" / "wire" / "exchanges.json"


async def test_recorded_exchanges():
    async with serving() as api:
        api.node.add_topic("t")
        for exchange in orjson.loads(EXCHANGES.read_bytes()):
            request, expected = exchange["request"], exchange["answer"]
            answer = await api.call(
                request["method"],
                request["path"],
                headers={"Host": "node1.test:8082", **request["headers"]},
                data=orjson.dumps(request["body"]) if "body" in request else None,
            )
            shown = {name: answer.headers.get(name) for name in expected["headers"]}
            assert (answer.status, shown) == (expected["status"], expected["headers"]), exchange[
                "what"
            ]
            # Compared as text, so that the order of fields counts.
            assert answer.body == orjson.dumps(expected["body"]), exchange["what"]
