"""The conversion of another system's file: values taken, notes, and what is left.

A reader takes values from the foreign tree by path. A note names each value that was not taken: nothing is dropped
silently, not even keys that the reader does not know."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from everstep.errors import UsageError
from everstep.job_file.tree import Path, Tree


class Draft:
    """Takes from one foreign tree; `data` becomes the native form."""

    def __init__(self, tree: Tree, *, name: str) -> None:
        self.tree = tree
        self.name = name
        self.data: dict[str, Any] = {}
        self._notes: list[str] = []
        self._taken: set[Path] = set()

    # --- taking ---

    def take(self, *path: str) -> Tree | None:
        """The value there, with all below it; None if there is none."""
        self._taken.add(path)
        return self.tree.at(*path)

    def look(self, *path: str) -> Tree | None:
        """Without taking it."""
        return self.tree.at(*path)

    def text(self, *path: str) -> str | None:
        found = self.take(*path)
        self._check(path, found is None or found.is_scalar, "a text")
        return found.text if found else None

    def whole(self, *path: str) -> int | None:
        """A number without a fraction."""
        text = self.text(*path)
        is_whole = text is None or text.strip().lstrip("-").isdigit()
        self._check(path, is_whole, "a whole number", hint="write it without a fraction, such as 4")
        return None if text is None else int(text)

    def texts(self, *path: str) -> list[str]:
        """The items of a list of scalars, as they were written."""
        found = (self.take(*path) or Tree(value=[])).value
        self._check(path, isinstance(found, list) and all(each.is_scalar for each in found), "a list of texts")
        return [each.text for each in found] if isinstance(found, list) else []

    def mapping(self, *path: str) -> dict[str, str]:
        """Of texts, as they were written."""
        found = (self.take(*path) or Tree(value={})).value
        is_right = isinstance(found, dict) and all(each.is_scalar for each in found.values())
        self._check(path, is_right, "a mapping of texts", "name: value")
        return {key: each.text for key, each in found.items()} if isinstance(found, dict) else {}

    def items(self, *path: str) -> list[Path]:
        """Where the items of a list of mappings are; they are not taken."""
        found = (self.look(*path) or Tree(value=[])).value
        is_right = isinstance(found, list) and all(isinstance(each.value, dict) for each in found)
        self._check(path, is_right, "a list of mappings", "- {name: value}")
        return [(*path, str(index)) for index in range(len(found))] if isinstance(found, list) else []

    def _check(self, path: Path, is_right: bool, what: str, hint: str | None = None) -> None:
        if not is_right:
            found = self.tree.at(*path)
            given = f": {found.text!r}" if found is not None and found.is_scalar else ""
            code = f"draft-not-{what.replace(' ', '-')}"
            raise self.refused(f"{'.'.join(path)}{given} is not {what}", path=path, hint=hint, code=code)

    # --- putting ---

    def put(self, *path: str, value: Any) -> None:
        """Set a key of the native form, unless the value is empty."""
        if value in (None, "", {}, [], ()) or not path:
            return
        below = self.data
        for key in path[:-1]:
            below = below.setdefault(key, {})
        below[path[-1]] = value

    def say(self, note: str) -> None:
        if note not in self._notes:
            self._notes.append(note)

    # --- the end ---

    def notes(self) -> tuple[str, ...]:
        """Notes, and the places of values that were not taken. Not the values: some are secrets."""
        left = tuple(
            f"{'.'.join(path)}{'' if tree.line is None else f' (line {tree.line})'} was not carried over"
            f"{self._near(path)}"
            for path, tree in self._left(self.tree, ())
        )
        return (*self._notes, *left)

    def _near(self, path: Path) -> str:
        """A key that was looked for beside it, and is not there: it may be misspelled."""
        *above, name = path
        beside = {each[len(above)] for each in self._taken if each[:-1] == tuple(above)}
        missing = [key for key in beside if self.tree.at(*above, key) is None]
        near = difflib.get_close_matches(name, missing, n=1, cutoff=0.8)
        return f"; did you mean {near[0]}?" if near else ""

    def refused(self, message: str, *, code: str, path: Path = (), hint: str | None = None) -> UsageError:
        found = self.tree.at(*path) if path else None
        where = f"{self.name}:{found.line}" if found is not None and found.line is not None else self.name
        return UsageError(f"{where}: {message}", hint=hint, code=code)

    def _left(self, tree: Tree, path: Path) -> Iterator[tuple[Path, Tree]]:
        if path in self._taken or (tree.is_scalar and tree.value is None):
            return
        if tree.is_scalar or not any(taken[: len(path)] == path for taken in self._taken):
            if tree.value not in ({}, []):
                yield path, tree
            return
        for key, each in tree.children():
            yield from self._left(each, (*path, key))
