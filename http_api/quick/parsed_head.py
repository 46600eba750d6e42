"""The attributes of aiohttp's parsed head that this package uses.

This is a protocol and not aiohttp's class, because aiohttp's parser in C creates objects of another class than its
annotations say. Compiled code would refuse these objects.
"""

from collections.abc import Sequence
from typing import Protocol

from aiohttp.http import HttpVersion
from multidict import CIMultiDictProxy
from yarl import URL


class ParsedHead(Protocol):
    """A request's first line and headers."""

    @property
    def method(self) -> str:
        """The method, in capitals."""

    @property
    def version(self) -> HttpVersion:
        """The version of HTTP."""

    @property
    def headers(self) -> CIMultiDictProxy[str]:
        """The headers. Names keep their case and may repeat."""

    @property
    def raw_headers(self) -> Sequence[tuple[bytes, bytes]]:
        """The headers as bytes, one for each line."""

    @property
    def should_close(self) -> bool:
        """Whether the connection closes after this request."""

    @property
    def upgrade(self) -> bool:
        """Whether the client asks for another protocol."""

    @property
    def chunked(self) -> bool:
        """Whether the body is chunked, so that its length is unknown in advance."""

    @property
    def url(self) -> URL:
        """The request's target."""
