"""Batches of leased samples, the last as short as it is, of whatever can be read."""

from __future__ import annotations

import gc

import pytest
from torch.utils.data import DataLoader

from everstep.data.shard_dataset import ShardDataset
from everstep.data.text_lines import STRIDE, TextLines
from everstep.errors import UsageError


class Numbers:
    """Some of them cannot be read."""

    def __init__(self, size, torn=()):
        self.size, self.torn = size, torn

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index in self.torn:
            raise OSError("torn")
        return index


@pytest.fixture
def make():
    made = []

    def begin(*arguments, **options):
        made.append(ShardDataset(*arguments, **options))
        return made[-1]

    yield begin
    for each in made:
        each.close()
    gc.collect()


def load(dataset, num_workers=0):
    return list(DataLoader(dataset, batch_size=None, num_workers=num_workers))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_record_of_every_epoch_with_the_tail(make, num_workers):
    dataset = make(Numbers(10), 4, num_epochs=2)
    got = [batch.tolist() for batch in load(dataset, num_workers)]
    assert got == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] * 2
    assert dataset.dataset_size == 10
    for _ in got:
        dataset.report_batch_done()
    assert dataset.state_dict()["checkpoint"]["done"] == [[0, 20]]
    assert dataset.service.is_end


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_cannot_be_read_is_left_out_and_listed(make, num_workers):
    dataset = make(Numbers(12, torn=(1, 4, 5, 6, 7)), 4, on_bad_shard="skip")
    got = [batch.tolist() for batch in load(dataset, num_workers)]
    assert got == [[0, 2, 3], [8, 9, 10, 11]]
    (bad,) = dataset.state_dict()["checkpoint"]["bad_shards"]
    assert sorted(bad["skipped"]) == [[1, 2], [4, 5], [5, 6], [6, 7], [7, 8]]
    assert bad["reason"] in {f"record {number}: OSError: torn" for number in (1, 7)}  # of whichever came last


@pytest.mark.parametrize("num_workers", [0, 1])
def test_or_the_error_rises(make, num_workers):
    with pytest.raises(OSError, match="torn"):
        load(make(Numbers(12, torn=(5,)), 4), num_workers)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loader_that_makes_batches_itself_is_told_so(make, num_workers):
    with pytest.raises(UsageError, match="makes its batches of 4 records itself"):
        list(DataLoader(make(Numbers(12), 4), batch_size=4, num_workers=num_workers))


def test_the_lines_of_a_text_file(make, tmp_path):
    path = tmp_path / "elastic_ds.txt"
    path.write_text("".join(f"images/{n}.png\t{n % 10}\n" for n in range(100)))
    dataset = make(path, 32, shuffle=True, transform=lambda line: line.split("\t")[0])
    got = [line for batch in load(dataset, 2) for line in batch]
    assert sorted(got) == sorted(f"images/{n}.png" for n in range(100))
    assert got[:3] != [f"images/{n}.png" for n in range(3)]


@pytest.mark.parametrize("text", [b"", b"\n", b"a", b"a\n", b"a\r\nb", b"\n\nc\n", "ä\nö".encode()])
def test_lines_are_those_that_python_reads(tmp_path, text):
    path = tmp_path / "text"
    path.write_bytes(text)
    with path.open(encoding="utf-8") as file:
        assert [*TextLines(path)] == [line.removesuffix("\n") for line in file]


def test_any_of_many_lines(tmp_path, monkeypatch):
    monkeypatch.setattr("everstep.data.text_lines.CHUNK", 1000)
    path = tmp_path / "text"
    path.write_text("\n".join(str(n) * (n % 7) for n in range(10 * STRIDE + 5)))
    lines = TextLines(path)
    assert [lines[n] for n in range(len(lines))] == [str(n) * (n % 7) for n in range(10 * STRIDE + 5)]
    with pytest.raises(IndexError, match=f"which has {10 * STRIDE + 5}"):
        lines[len(lines)]


def test_a_file_that_has_changed_is_refused(tmp_path):
    path = tmp_path / "text"
    path.write_text("a\nb\n")
    lines = TextLines(path)
    path.write_text("a\nb\nc\n")
    with pytest.raises(UsageError, match="has changed since its lines were counted"):
        lines[0]


def test_a_list_of_files(make, tmp_path):
    paths = []
    for n in range(5):
        paths.append(tmp_path / str(n))
        paths[-1].write_bytes(bytes([n]))
    assert load(make(paths, 2, transform=lambda content: content[0]))[-1].tolist() == [4]
    with pytest.raises(UsageError, match="cannot read a int"):
        make(7, 2)
