"""`--set key=value`, or `--config key=value` of experiments: change a job file from the command line. Keys are dotted
paths, values are YAML. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from everstep.errors import UsageError
from everstep.job_file.tree import Path, Tree, parse, replaced

SET, CONFIG = "--set", "--config"
_EXAMPLES = {SET: "resources.gpu=2", CONFIG: "searcher.max_trials=4"}
_PART = re.compile(r'"([^"]+)"|([^."=]+)')


def apply(tree: Tree, overrides: Sequence[str], *, option: str = SET) -> Tree:
    """In order; the last one wins. `option`: the one that gave them."""
    for text in overrides:
        path, value = parse_override(text, option)
        try:
            tree = replaced(tree, path, value)
        except UsageError as error:
            raise UsageError(f"{option} {'.'.join(path)}: {error.message}", hint=error.hint, code=error.code) from None
    return tree


def parse_override(text: str, option: str = SET) -> tuple[Path, Tree]:
    """`resources.memory=16Gi`; quote a key that contains dots: `labels."example.com/team"=vision`."""
    key, equals, value = _split(text)
    path = tuple(quoted or plain for quoted, plain in _PART.findall(key))
    if not equals or not path or _joined(path) != key.replace('"', ""):
        # Not the value: it may be a secret.
        hint = f"{option} key=value, such as {option} {_EXAMPLES[option]}"
        raise UsageError(f"{option} {key}: not KEY=VALUE", hint=hint, code="override-incomplete")
    tree = parse(value, name=f"{option} {key}") if value.strip() else Tree(value=None)
    if path[0] == "secrets":
        _check_secret(key, tree, option)
    return path, _without_lines(tree)


def _split(text: str) -> tuple[str, str, str]:
    """At the first = outside quotes."""
    found = re.match(r'((?:"[^"]*"|[^="])*)(=?)(.*)', text, re.DOTALL)
    return (found[1], found[2], found[3]) if found else (text, "", "")


def _joined(path: Path) -> str:
    return ".".join(path)


def _check_secret(key: str, tree: Tree, option: str) -> None:
    """All users of a machine can see its command lines."""
    from everstep.job_file.secret import parse_secret  # late: a preview alone is quick

    scalars = [each for _, each in tree.children()] if not tree.is_scalar else [tree]
    if any(each.value is not None and parse_secret(each.text or None).is_value for each in scalars):
        message = f"{option} {key}: other users can see a secret on the command line"
        raise UsageError(message, hint=f"{option} {key}=env:NAME or =file:PATH", code="override-shows-secret")


def _without_lines(tree: Tree) -> Tree:
    if isinstance(tree.value, dict):
        return Tree(value={key: _without_lines(each) for key, each in tree.value.items()})
    if isinstance(tree.value, list):
        return Tree(value=[_without_lines(each) for each in tree.value])
    return Tree(value=tree.value, text=tree.text)
