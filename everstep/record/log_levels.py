"""How severe a line of a log is, found from its text: Python's logging, warnings, tracebacks, and torch's own lines.

Pure. The numbers are those of Python's `logging`; a line that says nothing about it counts as INFO."""

from __future__ import annotations

import re

DEBUG, INFO, WARNING, ERROR, CRITICAL = 10, 20, 30, 40, 50
LEVELS = {"debug": DEBUG, "info": INFO, "warning": WARNING, "error": ERROR, "critical": CRITICAL}

_WORDS = {**LEVELS, "notset": INFO, "trace": DEBUG, "warn": WARNING, "fatal": CRITICAL}
_LETTERS = {"V": DEBUG, "D": DEBUG, "I": INFO, "W": WARNING, "E": ERROR, "F": CRITICAL, "C": CRITICAL}
_LOOK_CHARS = 160  # the level is near the beginning: the rest of a line is its message
# "[rank0]:" is what torchrun puts before a line, "[w3]" what Everstep does.
_BEFORE = r"(?:\[(?:rank)?\w{1,12}\]:?\s*)?"
_STAMP = r"[\dT:.,/+Z -]*"  # date and time, in any order of digits
_LEVEL = r"(?P<word>TRACE|DEBUG|INFO|NOTSET|WARN(?:ING)?|ERROR|CRITICAL|FATAL)"
# "WARNING:root:…", "2026-01-02 03:04:05,678 - name - WARNING - …", "… WARNING: name: …", "[…][name][INFO] …"
_LOGGED = re.compile(
    rf"^{_BEFORE}(?:\[?{_STAMP}\]?\s*)?(?:[-|:]\s*)?(?:[\[(]?[\w.:/<>-]+[\])]?\s*(?:[-|:]\s+|\s+(?=[\[(])|(?=\[)))?"
    rf"[\[(<]?{_LEVEL}\b[\])>]?(?=[\s:|\]-]|$)",
    re.IGNORECASE,
)
_GLOG = re.compile(rf"^{_BEFORE}\[?(?P<letter>[VDIWEFC])\d{{4}} \d\d:\d\d:\d\d")  # absl, glog, torch
_WARNED = re.compile(r"^(?:\S.*:\d+: )?(?:[\w.]*Warning): ")  # "train.py:3: UserWarning: …"
_TRACEBACK = re.compile(r"^(?:\S+\s+)?\s*Traceback \(most recent call last\):")
_RAISED = re.compile(r"^\s*(?:[\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Iteration|Lost|Refused)\b(?::|$)")
_CRASHED = re.compile(r"^(?:Fatal Python error|Segmentation fault|terminate called|Aborted\b)")


class LevelFinder:
    """The lines of one stream, in order: what follows a level belongs to it as long as it is indented."""

    def __init__(self) -> None:
        self._level = INFO  # of the last line that was not indented
        self._is_traceback = False

    def next(self, line: str) -> int:
        if self._is_traceback and (not line.strip() or line[0] in " \t"):
            return ERROR
        if line[:1] in (" ", "\t") and not _TRACEBACK.match(line):
            return self._level
        was_traceback, self._is_traceback = self._is_traceback, False
        self._level = level_of(line)
        if _TRACEBACK.match(line):
            self._is_traceback = True
        elif was_traceback and self._level == INFO:  # the exception itself, whatever its name
            self._level = ERROR
        return self._level


def level_of(line: str) -> int:
    """Of a line alone."""
    head = line[:_LOOK_CHARS]
    if found := _LOGGED.match(head):
        if _is_shouted(found) or _has_separator(head, found):
            return _WORDS[found["word"].lower()]
    elif found := _GLOG.match(head):
        return _LETTERS[found["letter"]]
    if _TRACEBACK.match(head) or _RAISED.match(head):
        return ERROR
    if _CRASHED.match(head):
        return CRITICAL
    if _WARNED.match(head):
        return WARNING
    return INFO


def _is_shouted(found: re.Match[str]) -> bool:
    return found["word"].isupper()


def _has_separator(head: str, found: re.Match[str]) -> bool:
    """ "warning: …" and "[error] …" name a level, "info about x" and "error rate 0.1" do not."""
    rest = head[found.end("word") :]
    return rest.startswith(("]", ")", ">", ":", " |", " - "))
