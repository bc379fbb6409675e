"""A search over chunks finds what a scan of all lines finds."""

from __future__ import annotations

import re
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.errors import UsageError
from everstep.record import log_chunk
from everstep.record.log_chunk import STDERR, STDOUT, PrintedLine, chunk_of, unpack
from everstep.record.log_search import LogPart, LogQuery, check_query, find, part_at, required_text
from everstep.record.log_trigrams import FILTER_BYTES, bits_of, build_filter, may_hold

TEXTS = st.text(alphabet="ab12 =ö\r\x00\u2028", max_size=12)
LINES = st.builds(
    PrintedLine,
    st.integers(0, 40).map(lambda each: each / 4),
    st.sampled_from([10, 20, 30, 40, 50]),
    st.sampled_from([STDOUT, STDERR]),
    TEXTS,
)
PARTS = st.tuples(st.sampled_from(["w0", "w1", "w2"]), st.integers(-1, 2), st.lists(LINES, min_size=1, max_size=6))
CHUNKS = st.lists(st.lists(PARTS, min_size=1, max_size=4), max_size=4)
QUERIES = st.builds(
    LogQuery,
    text=TEXTS,
    regex=st.sampled_from(["", "a", "ab12", "a.*1", "^a", "b$", "a|12", "(?i)AB1", "[^a]b", "aab?"]),
    workers=st.none() | st.frozensets(st.sampled_from(["w0", "w1", "w9"]), min_size=1),
    rank=st.none() | st.integers(-1, 2),
    level=st.sampled_from([0, 20, 40]),
    since=st.none() | st.integers(0, 10).map(float),
    until=st.none() | st.integers(0, 10).map(float),
)


def wanted(query, worker, rank, line):
    return (
        query.text in line.text
        and re.search(query.regex, line.text) is not None
        and (query.workers is None or worker in query.workers)
        and query.rank in (None, rank)
        and line.level >= query.level
        and (query.since is None or line.time >= query.since)
        and (query.until is None or line.time < query.until)
    )


@given(CHUNKS, QUERIES)
def test_a_search_over_chunks_equals_a_scan_of_all_lines(chunks, query):
    scanned = [
        (worker, line)
        for chunk in chunks
        for worker, rank, lines in chunk
        for line in lines
        if wanted(query, worker, rank, line)
    ]

    found = []
    for told in chunks:
        chunk = unpack(log_chunk.join(chunk_of(lines) for _, _, lines in told).pack())
        parts = [
            LogPart(number=number, worker=worker, rank=rank, first_line=0, num_lines=len(lines))
            for number, (worker, rank, lines) in enumerate(told)
        ]
        times = [line.time for _, _, lines in told for line in lines]
        top = max(line.level for _, _, lines in told for line in lines)
        facts = {"first_time": min(times), "last_time": max(times), "top_level": top}
        if query.may_match(**facts, chunk_filter=build_filter(chunk.text)):
            found += [(part_at(parts, at)[0].worker, chunk.line(at)) for at in find(chunk, parts, query)]

    assert found == scanned


@given(st.binary(max_size=200), st.integers(0, 200), st.integers(0, 200))
def test_a_filter_never_says_no_where_the_text_is(text, start, stop):
    assert may_hold(bits_of(text[start:stop]), build_filter(text))


def test_a_filter_says_no_to_most_texts_that_are_not_there():
    text = b"".join(b"step %d loss=%.6f\n" % (number, 1 / (number + 1)) for number in range(8000))[: 256 * 1024]
    chunk_filter = build_filter(text)

    assert len(chunk_filter) == FILTER_BYTES
    words = ["CUDA out of memory", "Traceback", "NCCL", "checkpoint saved", "nan"]
    assert [word for word in words if may_hold(bits_of(word.encode()), chunk_filter)] == []


@pytest.mark.parametrize(
    ("regex", "text"),
    [
        ("abc", "abc"),
        ("abc.*def", "abc"),
        ("a+bcd", "bcd"),
        ("(?i)abc", ""),
        ("abc|abd", "ab"),
        ("abc|xyz", ""),
        ("^abc$", "abc"),
        ("ab(cd)?ef", "ab"),
        ("a?", ""),
    ],
)
def test_the_text_that_each_match_has(regex, text):
    assert required_text(regex) == text


def test_what_is_not_a_search_is_refused():
    for query in (LogQuery(text="a\nb"), LogQuery(regex="("), LogQuery(regex="a" * 10 + "{" + "9" * 30 + "}")):
        with pytest.raises(UsageError):
            check_query(query)


def test_what_is_not_a_chunk_is_refused():
    whole = chunk_of([PrintedLine(1.0, 20, STDOUT, "hello")] * 100).pack()
    for data in (b"", b"x" * 50, whole[:-3], whole[:-1] + b"\0", whole[:3] + b"\xff" + whole[4:]):
        with pytest.raises(ValueError, match="chunk"):
            log_chunk.check(unpack(data))


def test_a_few_bytes_that_unpack_to_a_gigabyte_are_refused_without_unpacking_it():
    bomb = zlib.compress(bytes(1 << 26))
    head = log_chunk._HEAD.pack(1, 100, len(zlib.compress(bytes(9))))
    with pytest.raises(ValueError, match="promised"):
        unpack(head + zlib.compress(bytes(9)) + bomb)
