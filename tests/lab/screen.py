"""A terminal as a person sees it: a command's lines after all that has moved the cursor, erased and overwritten; and
the keys that are pressed. Knows as much of a terminal's language as our commands speak."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from lab.command import DEADLINE_S, environment, until

CTRL_C = "\x03"
_PARTS = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|([\r\n\b\x07])|([^\x1b\r\n\b\x07])")
_OPEN = 'exec "$@" < "$0"'  # by the leader of a session: now its terminal


class Rows:
    """What has been written, by rows; those that have left the screen too, which no cursor reaches."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._rows, self._row, self._column = [""], 0, 0
        self._left = ""  # the beginning of a part that is still to come

    @property
    def lines(self) -> list[str]:
        return "\n".join(row.rstrip() for row in self._rows).rstrip("\n").split("\n")

    def write(self, text: str) -> None:
        text, end = self._left + text, 0
        for found in _PARTS.finditer(text):
            if found.start() != end:
                break
            end = found.end()
            parameters, letter, control, character = found.groups()
            if letter:
                self._obey(letter, parameters)
            elif control:
                self._control(control)
            else:
                self._put(character)
        self._left = text[end:]

    def _obey(self, letter: str, parameters: str) -> None:
        number = int(parameters) if parameters.isdigit() else 0
        row = self._rows[self._row].ljust(self._column)
        if letter == "A":
            self._row = max(self._row - max(1, number), len(self._rows) - self.height, 0)
        elif letter == "K":
            kept = {0: row[: self._column], 1: " " * self._column + row[self._column :], 2: ""}
            self._rows[self._row] = kept[number]
        else:
            assert letter in "mhl", f"an unknown command of the terminal: {parameters}{letter}"

    def _control(self, control: str) -> None:
        if control == "\r":
            self._column = 0
        elif control == "\n":
            self._row += 1
            if self._row == len(self._rows):
                self._rows.append("")
        elif control == "\b":
            self._column = max(0, self._column - 1)

    def _put(self, character: str) -> None:
        if self._column == self.width:  # it wraps only with the next character
            self._control("\r")
            self._control("\n")
        row = self._rows[self._row].ljust(self._column)
        self._rows[self._row] = row[: self._column] + character + row[self._column + 1 :]
        self._column += 1


class Screen:
    """One terminal, for one command after the other."""

    def __init__(self, folder: Path, env: Mapping[str, str], *, width: int = 80, height: int = 24) -> None:
        self._folder = folder
        self._env = environment(**env) | {"TERM": "xterm"}
        for name in ("COLUMNS", "LINES"):
            self._env.pop(name, None)
        self._rows = Rows(width, height)
        self._main, self._other = pty.openpty()
        fcntl.ioctl(self._other, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self._process: subprocess.Popen[bytes] | None = None
        self._hangs_up = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def lines(self) -> list[str]:
        return self._rows.lines

    @property
    def said(self) -> str:
        return "\n".join(self.lines)

    def start(self, *words: str) -> None:
        opened = ["sh", "-c", _OPEN, os.ttyname(self._other), *words]
        out = self._other
        self._process = subprocess.Popen(
            opened, cwd=self._folder, env=self._env, stdout=out, stderr=out, start_new_session=True
        )

    def press(self, keys: str) -> None:
        os.write(self._main, keys.encode())

    def until(self, is_shown: Callable[[str], object]) -> None:
        until(lambda: is_shown(self.said), lambda: self.said)

    def exit_code(self) -> int:
        """Once all that it has written is shown."""
        assert self._process is not None
        code = self._process.wait(DEADLINE_S)
        if not self._hangs_up.is_set():
            mark = f"ended {self._process.pid}"
            os.write(self._other, f"\r\n{mark}\r\n".encode())
            self.until(lambda said: mark in said)
        return code

    def hang_up(self) -> None:
        """Close the terminal, after what it shows next."""
        os.close(self._other)
        self._hangs_up.set()
        self._reader.join(DEADLINE_S)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if not self._hangs_up.is_set():
            os.close(self._other)
        self._reader.join(DEADLINE_S)

    def _read(self) -> None:
        left = b""
        while not self._hangs_up.is_set():
            try:
                left += os.read(self._main, 4096)
            except OSError:  # the other end is closed
                break
            text = left.decode(errors="ignore")
            left = left[len(text.encode()) :]
            self._rows.write(text)
        os.close(self._main)
