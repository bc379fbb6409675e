"""What `everstep run SCRIPT` refuses and what it remarks, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from everstep.cli.main import app
from everstep.errors import UsageError
from everstep.jobs.script import check_script


def test_a_script_that_is_there_is_taken(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    assert check_script(str(script), ["--epochs", "3"], is_module=False, is_program=False) == ()


def test_one_that_is_not_there_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=f"nope.py in {tmp_path}") as refused:
        check_script("nope.py", [], is_module=False, is_program=False)
    assert refused.value.code == "script-missing"


def test_modules_and_programs_are_found_by_others() -> None:
    assert check_script("my.module", [], is_module=True, is_program=False) == ()
    assert check_script("bash", [], is_module=False, is_program=True) == ()


def test_a_job_file_goes_with_an_option(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.touch()
    with pytest.raises(UsageError) as refused:
        check_script(str(job), [], is_module=False, is_program=False)
    assert refused.value.code == "script-is-a-job-file"
    assert "everstep run -f" in str(refused.value)


def test_an_option_of_ours_that_stands_too_late_is_remarked(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    for word in ("--dry-run", "--nproc_per_node=3"):
        (note,) = check_script(str(script), [word, "--epochs=3"], is_module=False, is_program=False)
        assert note.startswith(f"{word} comes after the script")


def test_a_misspelled_command_gets_a_suggestion() -> None:
    assert "No such command 'runn'. Did you mean 'run'?" in CliRunner().invoke(app, ["runn", "train.py"]).output


def test_a_command_may_be_spelled_with_an_underscore() -> None:
    assert CliRunner().invoke(app, ["show_config", "--help"]).exit_code == 0


def test_a_value_of_the_wrong_kind_is_named_plainly() -> None:
    assert "'abc' is not a valid number." in CliRunner().invoke(app, ["run", "--lease-s", "abc", "train.py"]).output


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (["checkpoint", "list"], "Missing argument 'URI'"),
        (["checkpoint", "export", "."], "Missing argument 'FILE'"),
        (["join", "train.py"], "Missing option '--coordinator'"),
        (["join", "--coordinator", "http://127.0.0.1:1", "--job", "j"], "Missing argument 'SCRIPT'"),
        (["scale", "j"], "Missing option '--nodes'"),
        (["coordinate"], "Missing option '--order'"),
    ],
)
def test_what_is_required_and_missing_is_named(words: list[str], missing: str) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2 and missing in done.output


def test_nan_is_not_a_number() -> None:
    assert "'nan' is not a number." in CliRunner().invoke(app, ["run", "--keep-warm", "nan", "train.py"]).output
