"""A process that applies regular expressions to text: an expression can take forever, and a process can be killed.

Reads requests from one descriptor and writes replies to another, as lengths and bytes."""

from __future__ import annotations

import json
import resource
import struct
import sys
from typing import BinaryIO

from everstep.record.log_search import compile_regex, lines_with

LENGTH = struct.Struct("<I")
_MEMORY_BYTES = 1 << 30


def read_frame(stream: BinaryIO) -> bytes | None:
    """None at the end."""
    head = stream.read(LENGTH.size)
    return stream.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else None


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    requests, replies = (int(each) for each in sys.argv[1:3])
    with open(requests, "rb") as asked, open(replies, "wb") as answers:
        while (regex := read_frame(asked)) is not None and (text := read_frame(asked)) is not None:
            found = json.dumps(lines_with(compile_regex(regex.decode()), text)).encode()
            answers.write(LENGTH.pack(len(found)) + found)
            answers.flush()
