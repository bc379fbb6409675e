"""What stands beside an image in its slot: all that is needed to write it without the worker who made it.

Pure. Knows nothing of torch."""

from __future__ import annotations

import json
from dataclasses import dataclass

from everstep.checkpoint import strict_json
from everstep.checkpoint.image import FileLayout, ImageLayout, ImageShare
from everstep.checkpoint.manifest import Manifest, from_record, to_record

_WHERE = "the description of a state in memory"


@dataclass(frozen=True, kw_only=True, slots=True)
class Description:
    """`layout` comes back without heads and slices: the image holds them."""

    uri: str
    layout: ImageLayout
    manifest: Manifest


def pack(description: Description) -> bytes:
    layout = description.layout
    record = {
        "uri": description.uri,
        "share": [layout.share.rank, layout.share.size],
        "files": [[file.name, file.offset, file.size_bytes] for file in layout.files],
        "digest": layout.digest,
        "size_bytes": layout.size_bytes,
        "manifest": to_record(description.manifest),
    }
    return json.dumps(record, separators=(",", ":")).encode()


def unpack(text: bytes) -> Description:
    """CheckpointBroken if it is none."""
    record = strict_json.parse_json(text, _WHERE)
    rank, size = strict_json.field(record, "share", list, _WHERE)
    files = [
        FileLayout(name=name, offset=offset, size_bytes=size_bytes, head=b"")
        for name, offset, size_bytes in strict_json.field(record, "files", list, _WHERE)
    ]
    layout = ImageLayout(
        share=ImageShare(rank=rank, size=size),
        files=tuple(files),
        slices=(),
        size_bytes=strict_json.natural(record, "size_bytes", _WHERE),
        digest=strict_json.field(record, "digest", str, _WHERE),
    )
    manifest = from_record(strict_json.field(record, "manifest", dict, _WHERE), _WHERE)
    return Description(uri=strict_json.field(record, "uri", str, _WHERE), layout=layout, manifest=manifest)
