"""Find phrases in the prose of the repository: strings and comments of code, pages of documents."""

from __future__ import annotations

import ast
import io
import itertools
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Phrase:
    pattern: re.Pattern[str]
    instead: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    path: Path
    line: int
    text: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text!r}: {self.instead}"


def phrases(root: Path) -> list[Phrase]:
    """tools/phrases.txt: a regular expression, two blanks or more, what to write instead."""
    found = []
    for line in (root / "tools" / "phrases.txt").read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            pattern, instead = re.split(r"\s{2,}", line.strip(), maxsplit=1)
            found.append(Phrase(pattern=re.compile(pattern, re.IGNORECASE), instead=instead))
    return found


def banned_phrases(root: Path) -> Iterator[Match]:
    known = phrases(root)
    for path in prose_files(root):
        for line, text in prose(path):
            yield from _matches(known, path.relative_to(root), line, text)


def _matches(known: list[Phrase], path: Path, line: int, text: str) -> Iterator[Match]:
    """A phrase may go over the end of a line: all blanks are one. `line` is that of the text's beginning."""
    flat = re.sub(r"\s+", " ", text)
    for phrase in known:
        for match in phrase.pattern.finditer(flat):
            line_here = line + _lines_before(text, match.start())
            yield Match(path=path, line=line_here, text=match[0].strip(), instead=phrase.instead)


def _lines_before(text: str, flat_index: int) -> int:
    """How many lines end before this character of the text with all blanks as one."""
    pieces = itertools.islice(re.finditer(r"\s+|\S", text), flat_index)
    return sum(piece[0].count("\n") for piece in pieces)


def prose_files(root: Path) -> list[Path]:
    code = (path for folder in ("everstep", "examples", "benchmarks", "tools") for path in (root / folder).rglob("*"))
    pages = [root / "README.md", root / "CONTRIBUTING.md", *(root / "docs").rglob("*.md")]
    return sorted({path for path in [*code, *pages] if path.suffix in (".py", ".md") and path.is_file()})


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Pieces of text with the line each begins in: strings and comments of code, a whole page."""
    source = path.read_text()
    if path.suffix == ".md":
        yield 1, _without_code(source)
        return
    yield from _literals(ast.parse(source))
    yield from _comments(source)


def _without_code(page: str) -> str:
    """Names in backticks and targets of links are not prose. Blocks are: commands in them have comments."""
    page = re.sub(r"(?<!`)`[^`\n]+`(?!`)", "_", page)
    return re.sub(r"\]\([^)\s]+\)", "]", page)


def _literals(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Docstrings and strings. A formatted string is one text, with a mark for each value in it."""
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(each) for each in ast.walk(node)} - {id(node)}
            parts = [each.value if isinstance(each, ast.Constant) else "{}" for each in node.values]
            yield node.lineno, "".join(str(part) for part in parts)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, node.value


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Comments, those of neighboring lines as one text."""
    first, last, column, text = 0, 0, 0, ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, here = token.start
        said = token.string.lstrip("#").strip()
        if line == last + 1 and here == column:
            text, last = f"{text}\n{said}", line
            continue
        if text:
            yield first, text
        first, last, column, text = line, line, here, said
    if text:
        yield first, text
