"""What is asked of a head that aiohttp's parser has read.

A protocol, for the class is the parser's own affair: the parser in C makes another than aiohttp's annotations name, and
compiled code refuses what is not of the class that it was told.
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
        """In capitals."""

    @property
    def version(self) -> HttpVersion:
        """Of HTTP."""

    @property
    def headers(self) -> CIMultiDictProxy[str]:
        """In any case, as often as they came."""

    @property
    def raw_headers(self) -> Sequence[tuple[bytes, bytes]]:
        """One for each line."""

    @property
    def should_close(self) -> bool:
        """The connection ends with this request."""

    @property
    def upgrade(self) -> bool:
        """The client asks for another protocol."""

    @property
    def chunked(self) -> bool:
        """The body's length is not known beforehand."""

    @property
    def url(self) -> URL:
        """What was asked for."""
