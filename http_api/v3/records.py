"""v3 produce: one long request with many records. Receipts are sent while the request is still open.

Records that arrive together are appended together, so a client that sends one record after another gets the speed of
batches. Receipts are in the order of the records. The response starts with status 200 when the first receipt is ready,
so an error of a record is in its receipt. If bytes are not JSON, or a list, the last receipt has the error, and the
request ends.
"""

import asyncio
from collections.abc import Sequence

from aiohttp import web
from aiohttp.http import HttpVersion11

from http_api.formats.json_texts import JsonTexts
from http_api.formats.v3_records import texts_of
from http_api.protocol.errors import InvalidFieldError
from http_api.protocol.media import JSON_TYPE, check_json_type
from http_api.serving.call import Call
from http_api.v3.receipts import Job, append, append_texts, failure, item_of, job_of
from milena.model.errors import MilenaError
from milena.model.quotas import QuotaKey

_STEP_BYTES = 128 << 10
"""The most bytes that are processed without a pause, so that other requests can run. Compressed bodies arrive whole."""


async def produce(call: Call) -> web.StreamResponse:
    """Append records as long as they arrive."""
    check_json_type(call.header("Content-Type"))
    job = await job_of(call)
    texts = JsonTexts(call.ports.limits.request_bytes_max)
    answer = _Answer(call)
    with (
        call.shared.quotas.place(call.payer, QuotaKey.STREAM_COUNT),
        call.shared.streams.place(call.body.holder),
        call.body.place.aside(),
    ):
        try:
            async for data in call.body.pieces(lambda: texts.kept_bytes > 0):
                for start in range(0, len(data), _STEP_BYTES):
                    await _take(call, job, texts, data[start : start + _STEP_BYTES], answer)
                call.body.account(texts.kept_bytes)
            await _take(call, job, texts, b"\n", answer)
            texts.close()
        except MilenaError as error:
            if not answer.has_begun:
                raise
            await answer.write([failure(error)])
    if not answer.has_begun:
        raise InvalidFieldError("Payload error. Request body is empty; records are expected.")
    return answer.response


class _Answer:
    """The response with the receipts. It starts with the first receipt."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.has_begun = False
        self.response = web.StreamResponse(
            headers=[
                ("Content-Type", JSON_TYPE),
                *call.own_headers,
            ]
        )
        if call.request.version < HttpVersion11:
            self.response.force_close()

    async def write(self, receipts: Sequence[bytes]) -> None:
        """Send these receipts."""
        if not receipts:
            return
        if not self.has_begun:
            self.has_begun = True
            self._call.begun = self.response
            self._call.begun_s = asyncio.get_running_loop().time()
            await self.response.prepare(self._call.request)
        await self.response.write(b"\r\n".join([*receipts, b""]))


async def _take(call: Call, job: Job, texts: JsonTexts, data: bytes, answer: _Answer) -> None:
    """Append the records that have arrived completely, and send their receipts; then raise the error behind them."""
    call.rights.check_again()
    values, broken = texts.feed(data)
    if (stored := texts_of(values)) is not None:
        receipts = await append_texts(call, job, stored) if stored else []
    else:
        receipts = await append(call, job, [item_of(value) for value in values])
    await answer.write(receipts)
    if broken is not None:
        raise broken
