"""How this project writes: plain words, docstrings that begin with a verb or a noun, short sentences in documents."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_tidy import PACKAGES

ROOT = Path(__file__).parent.parent
SENTENCE_WORDS_MAX = 40
LISTED = re.compile(
    r"\b(nobody|whoever|anew|thereof|thereby|therein|hitherto|henceforth|whichever|begun)\b",
    re.IGNORECASE,
)
FIRST_WORDS = ("What ", "Who ", "Of ", "Those ", "The same ")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
TREES = (*PACKAGES, "tests/support", "tests/judge")
SOURCES = sorted(
    path for package in TREES for path in (ROOT / package).rglob("*.py") if path.is_file()
)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def paragraphs(text: str) -> Iterator[str]:
    """Paragraphs and list items of a document; no code, headings, tables or HTML."""
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        begins = re.match(r"\s*([-*]|\d+\.)\s+", line)
        is_prose = bool(line.strip()) and not line.lstrip().startswith(("#", "|", "<", "    "))
        if lines and (begins or not is_prose):
            yield " ".join(lines)
            lines = []
        if is_prose:
            lines.append(line[begins.end() :] if begins else line.strip())


def sentences(text: str) -> Iterator[str]:
    for paragraph in paragraphs(text):
        yield from re.split(r"(?<=[.!?])\s+(?=[A-Z`*\"(\[])", paragraph)


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.lineno, node.value.value


def comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_sentences_of_documents_are_short_and_plain(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    long = [s for s in sentences(text) if len(s.split()) > SENTENCE_WORDS_MAX]
    assert not long, f"split these: {long}"
    assert not LISTED.findall(text), "say it in plain words"


@pytest.mark.parametrize("package", TREES)
def test_docstrings_and_comments_are_plain(package: str) -> None:
    found = []
    for path in (path for path in SOURCES if path.is_relative_to(ROOT / package)):
        source = path.read_text(encoding="utf-8")
        texts = list(docstrings(source))
        found += [
            f"{name(path)}:{line}: begin with a verb, or with the noun that this defines: {text}"
            for line, text in texts
            if text.startswith(FIRST_WORDS)
        ]
        found += [
            f"{name(path)}:{line}: '{word}'"
            for line, text in [*texts, *comments(source)]
            for word in LISTED.findall(text)
        ]
    assert not found, "\n".join(found)
