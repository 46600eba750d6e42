"""The driver's first requests end with a clear error within ten seconds, if no node ever responds."""

import pytest

from milena import Client, ClientError
from spark_ext.cluster.questions import Questions
from spark_ext.options.parsing import parse_read_options, parse_stream_options, parse_write_options
from spark_ext.streaming.watch import StreamWatch
from spark_ext.writing.preparing import prepare_write
from tests.support.http.strangers import AT_ONCE, PLACES
from tests.support.time.virtual_time import LoopClock, current_loop, virtual

LIMIT_S = 10.0

READ = {"subscribe": "t"}
WRITE = {"topic": "t"}


async def batch_read(client, url):
    options = parse_read_options({"url": url, **READ}, {})
    await Questions(client, options, clock=LoopClock()).topics(["t"])


async def stream(client, url):
    options = parse_stream_options({"url": url, **READ}, {})
    await StreamWatch(client, options.read, LoopClock()).look(["t"])


async def sink(client, url):
    await prepare_write(client, parse_write_options({"url": url, **WRITE}, {}))


@pytest.mark.parametrize("place", PLACES.keys() - {"name that does not resolve"})
@pytest.mark.parametrize("operation", [batch_read, stream, sink])
@virtual
async def test_the_driver_says_in_time_what_is_wrong(operation, place):
    at, told = PLACES[place]
    async with at() as url:
        began_s = current_loop().time()
        with pytest.raises(ClientError) as caught:
            async with Client(url, clock=LoopClock()) as client:
                await operation(client, url)
        took_s = current_loop().time() - began_s
    assert told in caught.value.message
    assert took_s <= (1 if place in AT_ONCE else LIMIT_S)
    if place != "closed cluster":
        assert url in caught.value.message
