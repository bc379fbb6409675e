"""Submitted jobs from Python: functions that return values, and print nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.errors import UsageError
from everstep.jobs import submitted
from everstep.jobs.submitted import prepare, submit

JOB = "entrypoint: train.py\nname: api\nplatform: local\nenv: {EVERSTEP_NURSERY: 'off'}\n"
SCRIPT = "import signal\nprint('hello', flush=True)\nsignal.pause()\n"


def test_submit_status_logs_scale_and_cancel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)
    Path("train.py").write_text(SCRIPT)

    prepared = prepare(Path("job.yaml"))
    assert prepared.request.ticket.id in prepared.request.text
    record = submit(prepared)
    try:
        assert submitted.find(record.id) == record
        line = next(line for line in submitted.logs(record, follow=True) if line.text.endswith("hello"))
        assert line.text == "[w0] hello"
        assert submitted.status(record).state == "running"
        training = submitted.training(record)
        assert training is not None and [each.worker for each in training.view.workers] == ["w0"]
        with pytest.raises(UsageError) as refused:
            submitted.scale(record, 2)
        assert refused.value.code == "nodes-out-of-range"
    finally:
        ended = submitted.cancel(record)
    assert ended.is_over and ended.state == submitted.status(record).state
    assert [(each.id, status.state) for each, status in submitted.list_all()] == [(record.id, ended.state)]
    assert capfd.readouterr() == ("", "")
