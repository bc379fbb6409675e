"""No value of a secret leaves a node, in any shape that a log usually has."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

import pytest

from everstep.record.log_masks import MASK, Masks, too_short

VALUE = 'p"ss/wörd+1'


@pytest.mark.parametrize(
    "shape",
    [VALUE, json.dumps(VALUE)[1:-1], quote(VALUE, safe=""), base64.b64encode(VALUE.encode()).decode(), repr(VALUE)],
)
def test_a_value_is_masked_in_each_of_its_shapes(shape):
    masked = Masks([VALUE]).apply(f"token={shape}!".encode()).decode()
    assert shape not in masked and MASK in masked and masked.startswith("token=")


def test_of_two_values_the_longer_one_is_masked_whole():
    assert Masks(["abcd", "abcdefgh"]).apply(b"abcdefgh abcd") == b"*** ***"


def test_a_value_of_several_lines_is_masked_line_by_line():
    masks = Masks(["-----BEGIN KEY-----\nMIIabc\nxyz123\n-----END KEY-----\n"])
    assert masks.apply(b"MIIabc\nxyz123\n") == b"***\n***\n"


def test_a_cut_never_goes_through_a_value():
    masks = Masks(["secret"])
    for at in range(1, 20):
        cut = masks.cut_before(b"0123 secret 6789 abcd", at)
        assert cut == (at if not 5 < at < 11 else 5)


def test_values_too_short_to_mask_are_named():
    assert too_short([("A", "abc"), ("B", "abcd"), ("C", "")]) == ["A"]
    assert Masks(["abc", ""]).apply(b"abc") == b"abc"
