"""A script and every module that it imports, as one file: a browser asks once, not once for each of 30 modules.

Each module becomes a function that runs once and returns what it exports; a module stands after those that it imports.
Understands the few forms of `import` and `export` that the page and its packages use, and refuses any other. A dynamic
`import()` stays as it is. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from posixpath import dirname, join, normpath

_START = r"(?:^|(?<=[;}]))"  # of a statement: also within the long lines of packages
_IMPORT = re.compile(
    _START + r'import\s*(?:(?P<default>\w+)|\{(?P<names>[^}]*)\})\s*from\s*"(?P<path>\.[^"]+)";?', re.M
)
_PASSED_ON = re.compile(_START + r'export\s*\{(?P<names>[^}]*)\}\s*from\s*"(?P<path>\.[^"]+)";?', re.M)
_LISTED = re.compile(_START + r"export\s*\{(?P<names>[^}]*)\};?", re.M)
_DEFAULT = re.compile(_START + r"export default ", re.M)
_DECLARED = re.compile(r"^export (?P<kind>(?:async )?function|class|const) (?P<name>\w+)", re.M)
_OTHER = re.compile(_START + r"(?:import\b(?!\s*[(.])|export\b).{0,60}", re.M)


def bundle(entry: str, modules: Mapping[str, str]) -> str:
    """`modules`: texts by path. A path that is not there is the caller's mistake: KeyError."""
    return "\n".join(_written(entry, modules, {}))


def imported(name: str, text: str) -> list[str]:
    """The paths of the modules that this one names."""
    found = [*_IMPORT.finditer(text), *_PASSED_ON.finditer(text)]
    return [normpath(join(dirname(name), each["path"])) for each in found]


def _written(name: str, modules: Mapping[str, str], done: dict[str, bool]) -> Iterator[str]:
    """Those that it needs first. A module that is not done yet is one that needs this one itself."""
    done[name] = False
    for each in imported(name, modules[name]):
        if done.get(each) is False:
            raise ValueError(f"{each} and {name} import each other")
        if each not in done:
            yield from _written(each, modules, done)
    done[name] = True
    yield f"// {name}\nconst {_variable(name)} = (() => {{\n{_function_body(name, modules[name])}\n}})();"


def _function_body(name: str, text: str) -> str:
    exports: list[str] = []

    def take(match: re.Match[str]) -> str:
        source = _variable(normpath(join(dirname(name), match["path"])))
        names = [f"default: {match['default']}"] if match["default"] else _pairs(match["names"])
        return f"const {{{', '.join(names)}}} = {source};"

    def pass_on(match: re.Match[str]) -> str:
        source = _variable(normpath(join(dirname(name), match["path"])))
        exports.extend(f"{new}: {source}.{old}" for old, new in _names(match["names"]))
        return ""

    def listed(match: re.Match[str]) -> str:
        exports.extend(f"{new}: {old}" for old, new in _names(match["names"]))
        return ""

    def declared(match: re.Match[str]) -> str:
        exports.append(match["name"])
        return f"{match['kind']} {match['name']}"

    def default(_match: re.Match[str]) -> str:
        exports.append("default: $default")
        return "const $default = "

    for pattern, change in ((_IMPORT, take), (_PASSED_ON, pass_on), (_LISTED, listed), (_DECLARED, declared)):
        text = pattern.sub(change, text)
    text = _DEFAULT.sub(default, text)
    if other := _OTHER.search(text):
        raise ValueError(f"{name}: cannot bundle {other[0]!r}")
    return f"{text}\nreturn {{{', '.join(exports)}}};"


def _names(text: str) -> list[tuple[str, str]]:
    """`a, b as c`: (a, a), (b, c)."""
    pairs = [each.split() for each in text.split(",") if each.strip()]
    return [(pair[0], pair[-1]) for pair in pairs]


def _pairs(text: str) -> list[str]:
    return [f"{old}: {new}" for old, new in _names(text)]


def _variable(name: str) -> str:
    return "$" + re.sub(r"\W", "_", name)
