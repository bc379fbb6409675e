"""Plan where each tensor of a state goes in its image: once, and again only when the state's shape changes.

Most saves differ from the last in values alone. Then names, types and places are those of the last plan; only the
skeleton, which holds the plain values, is new."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from everstep.checkpoint.copier import Pairs
from everstep.checkpoint.double_buffer import Filling
from everstep.checkpoint.image import ImageLayout, ImageShare, lay_out, lay_out_again
from everstep.checkpoint.state_image import Contents, take_apart, targets
from everstep.checkpoint.state_snapshot import StateSnapshot
from everstep.engine.state import encode


@dataclass(frozen=True, kw_only=True, slots=True)
class ImagePlan:
    contents: Contents
    layout: ImageLayout

    def without_tensors(self) -> ImagePlan:
        """For the next save: it must not keep a state's memory alive."""
        return ImagePlan(contents=replace(self.contents, tensors=()), layout=self.layout)


class ImagePlanner:
    """For one thread: the copier's."""

    def __init__(self, file_bytes: int) -> None:
        self._file_bytes = file_bytes
        self._key: Any = None
        self._forms: list[Any] = []  # type and shape of each tensor of the last plan
        self._last: ImagePlan | None = None
        self._views: dict[int, tuple[Any, list[Tensor]]] = {}  # by buffer: what they depend on, and the views

    def plan(self, snapshot: StateSnapshot, share: ImageShare) -> ImagePlan:
        key = (snapshot.key, share)
        if self._last is not None and key == self._key and (again := self._plan_again(snapshot, self._last)):
            self._last = again.without_tensors()
            return again
        contents = take_apart(snapshot.value)
        self._forms = [(tensor.dtype, tensor.shape) for tensor in contents.tensors]
        layout = lay_out(contents.skeleton, contents.metas, share, file_bytes=self._file_bytes)
        plan = ImagePlan(contents=contents, layout=layout)
        self._key, self._last = key, plan.without_tensors()
        return plan

    def pairs(self, plan: ImagePlan, filling: Filling) -> Pairs:
        """Targets and sources of the copy. Views of a buffer are made once: each costs as much as a small copy."""
        layout, memory = plan.layout, filling.block.view
        known, views = self._views.get(filling.index, (None, []))
        if known is None or known[0] is not memory or known[1] is not layout.slices or known[2] != filling.offset:
            views = targets(plan.contents, layout, filling.image)
            self._views[filling.index] = ((memory, layout.slices, filling.offset), views)
        return [(view, plan.contents.tensors[each.index]) for view, each in zip(views, layout.slices, strict=True)]

    def forget(self) -> None:
        """Release the memory of the buffers."""
        self._views.clear()

    def _plan_again(self, snapshot: StateSnapshot, last: ImagePlan) -> ImagePlan | None:
        """None where a tensor in memory is not a tensor of the file: tied, sharded or complex."""
        metas = last.contents.metas
        tensors: list[Tensor] = []
        skeleton = encode(snapshot.value, tensors)
        if len(tensors) != len(metas) or any(meta.is_sharded or meta.is_complex_pairs for meta in metas):
            return None
        if [(tensor.dtype, tensor.shape) for tensor in tensors] != self._forms:
            return None
        places = [tensor.data_ptr() for tensor in tensors if tensor.nbytes]
        if len(set(places)) < len(places):
            return None
        contents = Contents(skeleton=skeleton, tensors=tuple(tensors), metas=metas)
        return ImagePlan(contents=contents, layout=lay_out_again(last.layout, skeleton, metas))
