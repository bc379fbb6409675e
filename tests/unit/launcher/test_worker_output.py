"""A worker's files become lines to send: each once, whole, masked, and within bounds."""

from __future__ import annotations

import base64
import os

import pytest

from everstep.launcher.worker_files import WorkerFiles
from everstep.launcher.worker_output import OutputPosition, WorkerOutput, split_lines
from everstep.record.log_chunk import MAX_CHUNK_BYTES, MAX_LINE_BYTES, STDERR, STDOUT
from everstep.record.log_masks import Masks
from everstep.wire.logs import MAX_DATA

NOW = 1e12  # later than any file's time


@pytest.fixture
def files(tmp_path):
    files = WorkerFiles(directory=tmp_path)
    files.stdout.touch()
    files.stderr.touch()
    return files


def output_of(files, *secrets):
    return WorkerOutput("w0", files, rank=0, masks=Masks(secrets))


def append(path, text):
    with path.open("ab") as file:
        file.write(text if isinstance(text, bytes) else text.encode())


def take(output, *, is_ended=False, keeps=True):
    found = output.next_lines(NOW, is_ended=is_ended)
    if found is None:
        return []
    if keeps:
        output.continue_from(found.end)
    return [found.chunk.line(index).text for index in range(found.chunk.num_lines)]


def test_whole_lines_are_taken_and_the_rest_when_it_is_whole(files):
    output = output_of(files)
    append(files.stdout, "one\ntwo\nthr")
    append(files.stderr, "oops\n")
    assert take(output) == ["one", "two", "oops"]
    assert take(output) == []
    append(files.stdout, "ee\nfo")
    assert take(output) == ["three"]
    assert take(output, is_ended=True) == ["fo"]
    assert take(output, is_ended=True) == []


def test_what_was_not_kept_is_taken_again(files):
    output = output_of(files)
    append(files.stdout, "one\ntwo\n")
    append(files.stderr, "three\n")
    assert take(output, keeps=False) == ["one", "two", "three"]
    output.rewind()
    assert take(output, keeps=False) == ["one", "two", "three"]

    output.continue_from(OutputPosition(line=1, stdout=4, stderr=0))
    again = output.next_lines(NOW, is_ended=False)
    assert again.first_line == 1
    assert again.end == OutputPosition(line=3, stdout=8, stderr=6)


def test_a_line_has_its_stream_its_level_and_the_time_of_its_file(files):
    append(files.stderr, "WARNING: x\n")
    os.utime(files.stderr, (5.0, 5.0))
    line = output_of(files).next_lines(NOW, is_ended=False).chunk.line(0)
    assert (line.stream, line.level, line.time) == (STDERR, 30, 5.0)
    append(files.stdout, "x\n")
    assert output_of(files).next_lines(7.0, is_ended=False).chunk.line(0).time == 7.0
    assert output_of(files).next_lines(7.0, is_ended=False).chunk.line(0).stream == STDOUT


def test_a_progress_bar_is_one_line_and_an_endless_one_does_not_wait_for_its_end(files):
    output = output_of(files)
    append(files.stderr, "\r10%\r50%\r100%\n")
    assert take(output) == ["100%"]
    append(files.stderr, b"\r12345678" * 4000)
    found = []
    while lines := take(output):
        found += lines
    assert len(found) == 36_000 // MAX_LINE_BYTES
    assert {line[:4] for line in found} <= {"", "1234", "1", "12", "123"}


def test_a_very_long_line_is_kept_in_pieces_without_cutting_a_secret(files):
    output = output_of(files, "hunter2hunter2")
    text = ("x" * (MAX_LINE_BYTES - 7) + "hunter2hunter2") * 3
    append(files.stdout, text)
    found = []
    while lines := take(output):
        found += lines
    found += take(output, is_ended=True)
    assert "".join(found) == text.replace("hunter2hunter2", "***")
    assert max(map(len, found)) <= MAX_LINE_BYTES


def test_lines_are_masked_before_they_are_taken(files):
    append(files.stdout, "token hunter2hunter2\nhunter2hunter2 again\n")
    assert take(output_of(files, "hunter2hunter2")) == ["token ***", "*** again"]


def test_what_is_beyond_the_bound_is_freed_and_what_was_not_sent_is_counted(files):
    output = output_of(files)
    line = "x" * 99 + "\n"
    append(files.stdout, line * 30_000)  # 3 MB
    output.free_old(1_000_000)

    found = output.next_lines(NOW, is_ended=False)
    assert found.dropped_lines == found.first_line == found.dropped_bytes // 100
    assert 24_000 < found.dropped_lines < 26_000
    assert files.stdout.stat().st_size == 3_000_000
    assert files.stdout.stat().st_blocks * 512 < 1_200_000
    output.rewind()  # it was not kept: the same again
    assert output.next_lines(NOW, is_ended=False).dropped_lines == found.dropped_lines
    output.continue_from(found.end)
    rest = found.chunk.num_lines
    while lines := take(output):
        rest += len(lines)
    assert found.dropped_lines + rest == 30_000


def test_another_agent_continues_after_what_was_freed(files):
    line = "x" * 99 + "\n"
    append(files.stdout, line * 30_000)
    output_of(files).free_old(1_000_000)

    found = output_of(files).next_lines(NOW, is_ended=False)
    assert found.chunk.line(0).text == "x" * 99
    assert found.dropped_bytes > 2_400_000 and found.dropped_lines == 0


def test_zeros_that_a_worker_prints_are_not_a_hole(files):
    append(files.stdout, b"\0\0binary\n")
    assert take(output_of(files)) == ["\0\0binary"]


def test_lines_of_any_encoding_are_taken():
    assert split_lines(b"caf\xe9\nna\xc3\xafve\n", Masks(), is_whole=False)[0][1] == "naïve"


def test_a_file_that_cannot_be_read_is_not_the_end_of_the_output(files):
    output = output_of(files)
    append(files.stdout, "one\n")
    assert take(output) == ["one"]
    files.stdout.rename(files.stdout.with_suffix(".aside"))
    files.stdout.mkdir()  # an error that root gets, too
    for look in (lambda: take(output, is_ended=True), lambda: take(output)):
        with pytest.raises(OSError, match="directory"):
            look()

    files.stdout.rmdir()
    assert take(output, is_ended=True) == []  # gone: nothing more comes


def test_bytes_that_are_no_text_do_not_make_a_chunk_too_large(files):
    output, found = output_of(files), []
    append(files.stdout, (b"\xfe" * 63 + b"\n") * 8000)
    append(files.stderr, b"\xfe" * 100_000)
    while lines := output.next_lines(NOW, is_ended=True):
        assert len(lines.chunk.text) <= 2 * MAX_CHUNK_BYTES - 1000
        assert len(base64.b64encode(lines.chunk.pack())) <= MAX_DATA
        output.continue_from(lines.end)
        found += [lines.chunk.line(index).text for index in range(lines.chunk.num_lines)]
    assert sum(len(text) for text in found) == 8000 * 63 + 100_000


def test_lines_that_are_refused_are_skipped_and_counted(files):
    output = output_of(files)
    append(files.stdout, "one\ntwo\n")
    append(files.stderr, "three\n")
    output.next_lines(NOW, is_ended=False)
    output.drop_read()
    append(files.stdout, "four\n")

    found = output.next_lines(NOW, is_ended=False)
    assert (found.first_line, found.dropped_lines, found.dropped_bytes) == (3, 3, 14)
    assert found.chunk.line(0).text == "four"


def test_what_was_read_and_not_kept_is_left(files):
    output = output_of(files)
    append(files.stdout, "one\n")
    found = output.next_lines(NOW, is_ended=False)
    assert output.num_left() == 4
    output.continue_from(found.end)
    assert output.num_left() == 0
