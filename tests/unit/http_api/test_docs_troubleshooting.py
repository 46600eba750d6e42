"""docs/troubleshooting.md tells of every error that an answer may be, as the table of errors has it."""

import re
from pathlib import Path

from http_api.protocol.errors import ERROR_TABLE, UNLISTED_ERROR

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+)` \| (\d+) \| (\d+) \| (.+?) \| (.+?) \|$", re.MULTILINE)


def test_every_error_has_its_row_and_no_row_is_left_over():
    told = [(name, int(status), int(code)) for name, status, code, _, _ in ROW.findall(PAGE)]
    known = [(kind.code, row.status, row.error_code) for kind, row in ERROR_TABLE.items()]
    assert sorted(told) == sorted(known)


def test_every_row_says_what_it_means_and_what_to_do():
    assert all(meaning and advice for *_, meaning, advice in ROW.findall(PAGE))


def test_the_error_without_a_row_is_told_of():
    below_the_table = PAGE.partition("## A node counts contained errors")[0].rpartition("|\n")[2]
    assert str(UNLISTED_ERROR.error_code) in below_the_table


def anchors(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_its_links_lead_somewhere():
    links = re.findall(r"\]\(([\w-]+\.md)?(?:#([\w-]+))?\)", PAGE)
    assert len(links) > 10
    for page, anchor in links:
        if anchor:
            assert anchor in anchors(page or "troubleshooting.md"), anchor
