"""A setting is declared once: options, job file, validation and docs find it there."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from everstep import env
from everstep.settings import setting, settings_of
from everstep.wire import Policy
from tools.docs_tables import PAGES, with_tables

ROOT = Path(__file__).parents[3]

# One more field, in the one file that declares the settings of a job; nothing else is touched.
DECLARES_ONE_MORE = """
import sys
from dataclasses import fields
from dataclasses import dataclass
from everstep.settings import setting
import everstep.wire, everstep.wire.policy as home

@dataclass(frozen=True, kw_only=True, slots=True)
class Policy(home.Policy):
    patience_s: float = setting(7.5, "Wait this long for nothing in particular", least=2, section="health")

home.Policy = everstep.wire.Policy = Policy
"""


def in_a_world_with_one_more(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", DECLARES_ONE_MORE + code],
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100"},
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


def test_it_is_an_option() -> None:
    shown = in_a_world_with_one_more("from everstep.cli.main import app\napp(['run', '--help'], standalone_mode=False)")
    assert "--patience-s S Wait this long for nothing in particular [default: 7.5; x>=2]" in " ".join(shown.split())


def test_it_is_a_key_of_the_job_file_and_reaches_the_policy() -> None:
    shown = in_a_world_with_one_more(
        "from everstep.job_file.load import json_schema, load\n"
        "from everstep.job_file.order import order_of, policy_of\n"
        "print(json_schema()['$defs']['HealthSection']['properties']['patience_s']['description'])\n"
        "job = load('entrypoint: train.py\\nhealth: {patience_s: 9}').job\n"
        "print(policy_of(order_of(job, 'j')).patience_s)"
    )
    assert shown.splitlines() == ["Wait this long for nothing in particular.", "9.0"]


def test_it_is_validated() -> None:
    shown = in_a_world_with_one_more(
        "print(*everstep.wire.policy_problems(Policy(patience_s=1)))\n"
        "from everstep.cli.main import app\n"
        "app(['run', '--patience-s', '1', 'train.py'])"
    )
    assert "patience_s=1 is less than 2" in shown
    assert "Invalid value for '--patience-s': 1.0 is not in the range x>=2" in shown


def test_it_is_in_the_docs() -> None:
    shown = in_a_world_with_one_more(
        "from tools.docs_tables import DOCS, with_tables\nprint(with_tables(DOCS / 'configuration.md', Policy))"
    )
    names = "| `patience_s` | `--patience-s` | `health.patience_s` | `EVERSTEP_POLICY_PATIENCE_S` | `7.5` |"
    assert f"{names} Wait this long for nothing in particular |" in shown.splitlines()


def test_it_is_an_environment_variable() -> None:
    shown = in_a_world_with_one_more(
        "import os\nos.environ['EVERSTEP_POLICY_PATIENCE_S'] = '1'\n"
        "from everstep.cli.main import app\n"
        "app(['run', 'train.py'])"
    )
    assert "Invalid value for '--patience-s': 1.0 is not in the range x>=2" in shown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_page_has_the_declarations_of_now(page: Path) -> None:
    assert page.read_text() == with_tables(page), "run: python tools/docs_tables.py"


def test_each_setting_of_a_job_is_declared_with_its_text() -> None:
    assert all(declared.text for declared in settings_of(Policy).values())
    assert len(settings_of(Policy)) == len(Policy.__dataclass_fields__)


@pytest.mark.parametrize(
    ("bounds", "value", "problem"),
    [
        ({"least": 1}, 0, "x=0 is less than 1"),
        ({"above": 0}, 0, "x must be more than 0"),
        ({"most": 2}, 2.5, "x=2.5 is more than 2"),
        ({"least": 1, "most": 2}, 2, None),
        ({"least": 1}, None, None),
        ({}, 10**30, "x=1000000000000000000000000000000 is more than 1.1259e+15"),
        ({}, -(10**400), None),
        ({"least": 1}, -(10**400), f"x=-1{'0' * 38} is less than 1"),
        ({}, float("nan"), "x=nan is not a number"),
    ],
)
def test_bounds(bounds: dict[str, float], value: float | None, problem: str | None) -> None:
    assert setting(1, "X", **bounds).metadata["setting"].problem("x", value) == problem


def test_each_variable_is_declared_under_its_own_name() -> None:
    ours = {value for value in vars(env).values() if isinstance(value, str) and value.startswith("EVERSTEP_")}
    assert ours == set(env.VARIABLES)


def test_words_after_the_script_belong_to_it() -> None:
    shown = in_a_world_with_one_more(
        "from everstep.cli import run\nfrom everstep.cli.options import command, SCRIPT_LAST\n"
        "from everstep.jobs.options import RunOptions\n"
        "seen = command(RunOptions, context_settings=SCRIPT_LAST)(lambda options: print(options) or 0)\n"
        "seen(['--nproc-per-node', '2', '--lease-s', '4', 'train.py', '--epochs', '3', '-m'])"
    )
    assert "script='train.py', args=('--epochs', '3', '-m')" in shown
    assert "nproc_per_node='2'" in shown and "module=False" in shown and "policy={'lease_s': 4.0}" in shown


def test_the_job_files_page_shows_the_default_that_a_missing_key_has() -> None:
    page = (ROOT / "docs" / "job_file.md").read_text()
    for each in fields(Policy):
        if section := settings_of(Policy)[each.name].section:
            default = "none" if each.default is None else f"`{each.default}`"
            assert f"| `{section}.{each.name}` | {default} |" in page
