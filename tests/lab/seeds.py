"""The documents that the product grew from, read from beside the repository: they are not in it, because others wrote
them.

A test that must run one of their snippets takes it from here; every other test uses a file of ours with that shape."""

from __future__ import annotations

import re
import textwrap

from lab.command import ROOT
from lab.required import missing

FOLDER = ROOT.parent / "shared" / "seeds"


def document(number: int) -> str:
    found = sorted(FOLDER.glob(f"{number:03}_*.txt"))
    if not found:
        missing(f"document {number} of those the product grew from", f"it is not in {FOLDER}")
    return found[0].read_text()


def snippet(number: int, words: str) -> str:
    """The only block of code in a document that contains these words."""
    text = document(number)
    fenced = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    literal = re.findall(r"^\.\. code::[^\n]*\n\n((?:[ ]+[^\n]*\n|\n)+)", text, re.MULTILINE)
    (found,) = [block for block in [*fenced, *map(textwrap.dedent, literal)] if words in block]
    return str(found)
