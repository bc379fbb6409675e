"""YAML as a tree that remembers the line and the text of each value; and writing YAML: `dump`.

Numbers and words are read as in YAML 1.2: `2:4` is a text and not 124, `1e-3` is a number, `yes` and `no` are words.
Reading runs no code, makes no objects, and refuses unbounded growth. Knows nothing of jobs."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import yaml

from everstep.errors import UsageError

Path = tuple[str, ...]  # items of a list by their number, from "0"
Scalar = str | int | float | bool | None

SHORTEST = "the shortest job file is: `entrypoint: train.py`"
_MAX_VALUES = 100_000
_MAX_DEPTH = 60
_STR, _NULL = "tag:yaml.org,2002:str", "tag:yaml.org,2002:null"
_BOOL, _INT, _FLOAT = "tag:yaml.org,2002:bool", "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_RESOLVERS = (
    (_BOOL, r"true|True|TRUE|false|False|FALSE", "tTfF"),
    (_INT, r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (_FLOAT, r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    (_FLOAT, r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
    (_NULL, r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:merge", r"<<", "<"),
)


_WAYS_OUT = {  # by part of the library's message
    "'\\t'": "indent with spaces, not tabs",
    "cannot start any token": "quote a text that begins with this character",
    "mapping values are not allowed": "quote a text that contains a colon",
    "expected a single document": "keep one job in a file: remove all after ---",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Tree:
    """One value of a document."""

    value: dict[str, Tree] | list[Tree] | Scalar
    text: str = ""  # of a scalar, as it was written
    line: int | None = None  # from 1; None: it was not in a file

    @property
    def is_scalar(self) -> bool:
        return not isinstance(self.value, dict | list)

    def children(self) -> Iterator[tuple[str, Tree]]:
        if isinstance(self.value, dict):
            yield from self.value.items()
        elif isinstance(self.value, list):
            yield from ((str(index), each) for index, each in enumerate(self.value))

    def at(self, *path: str) -> Tree | None:
        """None if there is nothing, or null."""
        found: Tree | None = self
        for key in path:
            found = dict(found.children()).get(key) if found is not None else None
        return None if found is None or found.value is None else found

    def plain(self, texts: Collection[Path] = (), path: Path = ()) -> Any:
        """As Python's own values; values at or below one of these paths, as written. List indices are ignored."""
        if path in texts:
            return None if self.value is None else self.written()
        if isinstance(self.value, dict):
            return {key: each.plain(texts, (*path, key)) for key, each in self.value.items()}
        if isinstance(self.value, list):
            return [each.plain(texts, path) for each in self.value]
        return self.value

    def written(self) -> Any:
        """As `plain`, but each scalar is the text that was written."""
        if isinstance(self.value, dict):
            return {key: each.written() for key, each in self.value.items()}
        if isinstance(self.value, list):
            return [each.written() for each in self.value]
        return self.text


def replaced(tree: Tree, path: Path, new: Tree) -> Tree:
    """With this value at the path. Missing mappings are created; a list item must exist."""
    if not path:
        return new
    key, rest = path[0], path[1:]
    if isinstance(tree.value, list):
        if not re.fullmatch(r"\d+", key) or int(key) >= len(tree.value):
            message = f"item {key} does not exist: the list has {len(tree.value)}"
            raise UsageError(message, hint="items count from 0", code="list-item-missing")
        items = list(tree.value)
        items[int(key)] = replaced(items[int(key)], rest, new)
        return replace(tree, value=items)
    below = tree.value if isinstance(tree.value, dict) else {}
    return replace(tree, value={**below, key: replaced(below.get(key) or Tree(value=None), rest, new)})


def over(below: Tree, above: Tree) -> Tree:
    """Mappings are joined key by key; otherwise, what is above counts."""
    if not (isinstance(below.value, dict) and isinstance(above.value, dict)):
        return above
    joined = dict(below.value)
    for key, each in above.value.items():
        joined[key] = over(joined[key], each) if key in joined else each
    return replace(above, value=joined)


def planted(data: Any) -> Tree:
    """A tree of Python's own values."""
    if isinstance(data, Mapping):
        return Tree(value={str(key): planted(each) for key, each in data.items()})
    if isinstance(data, list | tuple):
        return Tree(value=[planted(each) for each in data])
    return Tree(value=data, text=dump(data).strip() if isinstance(data, float | bool) else str(data))


# --- reading --------------------------------------------------------------------------------------


class _YamlLoader(yaml.SafeLoader):
    """Resolves scalars as YAML 1.2 does."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}


for _tag, _pattern, _first in _RESOLVERS:
    _YamlLoader.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})$"), list(_first))


def read_text(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        message = f"{path}: byte {error.start} is not UTF-8"
        raise UsageError(message, hint="save it as UTF-8 text", code="job-file-not-utf8") from None
    except OSError as error:
        message = f"{path}: {error.strerror}"
        raise UsageError(
            message, hint="give the path of an experiment file or a job file", code="job-file-unreadable"
        ) from None


def parse_mapping(text: str, *, name: str, shortest: str = SHORTEST) -> Tree:
    """`shortest`: a file of this kind, for hints."""
    tree = parse(text, name=name, shortest=shortest)
    if not isinstance(tree.value, dict):
        raise UsageError(f"{name} is not a mapping", hint=shortest, code="job-file-not-a-mapping")
    return tree


def parse(text: str, *, name: str, shortest: str = SHORTEST) -> Tree:
    """The one document of this text; `name` is for messages."""
    try:
        node = yaml.compose(text, Loader=_YamlLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # Without the library's excerpt of the line: it may hold a secret.
        message = f"{name}{f':{mark.line + 1}' if mark else ''}: this is not YAML: {error.problem or error.context}"
        raise UsageError(message, hint=_way_out(error), code="yaml-syntax") from None
    except (yaml.YAMLError, RecursionError) as error:
        message = f"{name}: this is not YAML: {type(error).__name__}"
        raise UsageError(message, hint="save it as UTF-8 text", code="yaml-unreadable") from None
    if node is None:
        raise UsageError(f"{name} is empty", hint=shortest, code="job-file-empty")
    return _Growing(name).tree(node)


def _way_out(error: yaml.MarkedYAMLError) -> str | None:
    said = f"{error.problem} {error.context}"
    return next((hint for part, hint in _WAYS_OUT.items() if part in said), None)


class _Growing:
    """Turns nodes into trees, and counts them: a few lines of aliases can mean billions of values."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._num_values = 0

    def tree(self, node: yaml.Node, depth: int = 0) -> Tree:
        line = node.start_mark.line + 1
        self._num_values += 1
        if self._num_values > _MAX_VALUES or depth > _MAX_DEPTH:
            what = f"more than {_MAX_VALUES:,} values" if depth <= _MAX_DEPTH else f"more than {_MAX_DEPTH} levels"
            raise self._refused(node, what, "check for an alias (*name) inside its own anchor", code="yaml-too-large")
        if isinstance(node, yaml.MappingNode):
            return Tree(value=self._mapping(node, depth), line=line)
        if isinstance(node, yaml.SequenceNode):
            return Tree(value=[self.tree(each, depth + 1) for each in node.value], line=line)
        text = self._text(node)
        return Tree(value=self._scalar(node, text), text=text, line=line)

    def _refused(self, node: yaml.Node, what: str, hint: str, *, code: str) -> UsageError:
        return UsageError(f"{self._name}:{node.start_mark.line + 1}: {what}", hint=hint, code=code)

    def _mapping(self, node: yaml.MappingNode, depth: int) -> dict[str, Tree]:
        merged: dict[str, Tree] = {}
        own: dict[str, Tree] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise self._refused(key, "a key must be a text", "key: value", code="yaml-key-not-a-text")
            name = self._text(key)
            if key.tag.endswith(":merge"):
                merged = {**self._merged(value, depth), **merged}
            elif name in own:
                what = f"{name} appears twice, also in line {own[name].line}"
                raise self._refused(key, what, "remove one of them", code="yaml-key-twice")
            else:
                # The key's own line: a block's value begins a line later.
                own[name] = replace(self.tree(value, depth + 1), line=key.start_mark.line + 1)
        return {**merged, **own}

    def _merged(self, node: yaml.Node, depth: int) -> dict[str, Tree]:
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        found: dict[str, Tree] = {}
        for source in reversed(sources):
            below = self.tree(source, depth + 1).value
            if not isinstance(below, dict):
                hint = "<<: *name of a mapping"
                raise self._refused(node, "<< needs a mapping", hint, code="yaml-merge-not-a-mapping")
            found |= below
        return found

    def _text(self, node: yaml.ScalarNode) -> str:
        """JSON writes what is beyond 16 bits as two escapes."""
        text: str = node.value
        if not re.search("[\ud800-\udfff]", text):
            return text
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            hint = r"\uD800 to \uDFFF come in pairs"
            raise self._refused(node, "half a character", hint, code="yaml-half-character") from None

    def _scalar(self, node: yaml.ScalarNode, text: str) -> Scalar:
        readers = {_STR: str, _NULL: lambda _: None, _BOOL: lambda t: t.lower() == "true", _INT: _int, _FLOAT: _float}
        tag = node.tag.rpartition(":")[2]
        if (read := readers.get(node.tag)) is None:
            raise self._refused(node, f"the tag {tag} is not supported", "remove it", code="yaml-tag-unknown")
        try:
            return read(text)  # type: ignore[no-any-return, operator]
        except ValueError:  # the tag does not fit the value
            raise self._refused(node, f"not a {tag}", "remove the tag", code="yaml-tag-mismatch") from None


def _int(text: str) -> int:
    return int(text, 0) if text.startswith(("0o", "0x")) else int(text)


def _float(text: str) -> float:
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))


# --- writing --------------------------------------------------------------------------------------


class _Dumper(yaml.SafeDumper):
    """Quotes texts that either version of YAML would read as something else."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {
        first: list(resolvers) for first, resolvers in yaml.SafeDumper.yaml_implicit_resolvers.items()
    }

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


for _tag, _pattern, _first in _RESOLVERS:
    _Dumper.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})$"), list(_first))


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # Unicode's own ends of lines are folded on reading unless they are escaped.
    is_escaped = re.search("[\x85\u2028\u2029\ufeff]", text)
    return dumper.represent_scalar(_STR, text, style='"' if is_escaped else "|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def dump(data: Any) -> str:
    """As YAML that reads back as the same values, here and by a reader of YAML 1.1."""
    text: str = yaml.dump(
        data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=False
    )
    return text.removesuffix("...\n")
