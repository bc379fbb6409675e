"""A folder that is followed is over when its record or its run says so, not while its coordinator restarts."""

from __future__ import annotations

from everstep.jobs.job_folder import is_folder_over
from everstep.launcher import run_record
from everstep.record.about import ABOUT


def test_a_job_is_over_once_its_record_is_complete(tmp_path):
    assert is_folder_over(tmp_path)  # a copy
    (tmp_path / "token").touch()
    assert not is_folder_over(tmp_path)
    (tmp_path / ABOUT).touch()
    assert is_folder_over(tmp_path)


def test_a_run_is_over_once_it_says_so(tmp_path):
    run_record.begin(tmp_path, "job", is_host=True)
    assert not is_folder_over(tmp_path)
    run_record.update(tmp_path, state=run_record.FINISHED)
    assert is_folder_over(tmp_path)
