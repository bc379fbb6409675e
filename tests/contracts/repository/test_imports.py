"""The control side and the command line must answer at once, on machines that have no torch at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import everstep

PACKAGE = Path(everstep.__file__).parent
# Everything but the engine, the doors and what they are made of.
WITH_TORCH = {
    "native",
    "controller",
    "engine",
    "nursery",
    "pytorch",
    "data",
    "checkpoint",
    "core",
    "experimental",
    "templates",  # no modules of ours
    "torchrun",
}
# What the agent and the command line do with checkpoints.
CHECKPOINT_WITHOUT_TORCH = {"catalog", "export", "image", "manifest", "policy", "write"}


def control_modules() -> list[str]:
    names = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts in (("doctor", "measuring_worker"), ("doctor", "gpu_worker")):  # with torch, in their own processes
            continue
        is_control = parts[0] not in WITH_TORCH or (parts[0] == "checkpoint" and parts[-1] in CHECKPOINT_WITHOUT_TORCH)
        if is_control and parts[-1] != "__main__":
            names.append(".".join(("everstep", *(part for part in parts if part != "__init__"))))
    return names


def in_fresh_python(code: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = (
        "import everstep, sys; print([m for m in ('torch', 'numpy', 'fastapi', 'httpx', 'click') if m in sys.modules])"
    )
    assert in_fresh_python(code).strip() == "[]"


def test_no_control_module_imports_torch() -> None:
    code = f"""
import importlib, json, sys
heavy = []
for name in {control_modules()!r}:
    importlib.import_module(name)
    if "torch" in sys.modules:
        heavy.append(name)
        break
print(json.dumps(heavy))
"""
    assert json.loads(in_fresh_python(code)) == []


def test_importing_control_modules_starts_nothing() -> None:
    code = f"""
import importlib, os, signal, threading
environment, handler = dict(os.environ), signal.getsignal(signal.SIGTERM)
for name in {control_modules()!r}:
    importlib.import_module(name)
print(threading.active_count(), dict(os.environ) == environment, signal.getsignal(signal.SIGTERM) == handler)
"""
    assert in_fresh_python(code).split() == ["1", "True", "True"]


def test_help_answers_without_torch() -> None:
    code = """
import sys
from everstep.cli.main import main
sys.argv = ["everstep", "--help"]
try:
    main()
except SystemExit as ended:
    print("status", ended.code, "torch" in sys.modules, "fastapi" in sys.modules)
"""
    output = in_fresh_python(code)
    assert "run" in output
    assert output.split()[-4:] == ["status", "0", "False", "False"]


OF_NODES = ("jobs.run", "jobs.node", "jobs.coordinate", "pool.join", "pool.trial_node", "pool.local_service")
THAT_LOOK = ("pool", "agent", "queue", "status", "metrics", "logs", "submitted", "checkpoint", "experiment_show",
             "experiment_describe", "experiment_logs", "experiment_files", "experiment_verbs", "verb_groups", "model",
             "model_version", "checkpoint_record", "trial", "template")  # fmt: skip


def test_what_runs_nodes_and_what_only_looks_import_no_reader_of_job_files() -> None:
    """That takes as long as all else they import; and each node, trial and command would wait for it."""
    code = f"""
import importlib, sys
for name in {[*(f"everstep.{each}" for each in OF_NODES), *(f"everstep.cli.{each}" for each in THAT_LOOK)]!r}:
    importlib.import_module(name)
    print(*(name for heavy in ("pydantic", "yaml", "sqlalchemy") if heavy in sys.modules))
"""
    assert in_fresh_python(code).split() == []


@pytest.mark.parametrize("name", sorted(set(everstep.__all__) - {"__version__"}))
def test_public_names_have_a_home(name: str) -> None:
    assert name in dir(everstep)


def test_packages_are_loaded_when_they_are_first_used() -> None:
    code = """
import sys, logging
import everstep as det
assert not {"everstep.core", "everstep.experimental", "everstep.pytorch"} & set(sys.modules)
det.core.DistributedContext, det.experimental.client.get_checkpoint, det.import_from_path
logging.basicConfig(format=det.LOG_FORMAT)
logging.getLogger("story").error("once upon a time")
print(det.get_cluster_info(), "torch" in sys.modules)
"""
    assert in_fresh_python(code).split() == ["None", "False"]


def test_a_message_that_is_made_late_is_looked_for_once() -> None:
    """The coordinator uses some of them a hundred times in one decision."""
    code = """
from everstep import wire
assert "TrialView" not in vars(wire)
wire.TrialView
print("TrialView" in vars(wire))
"""
    assert in_fresh_python(code).split() == ["True"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Trainr'"):
        _ = everstep.Trainr


def test_help_takes_a_fraction_of_a_second() -> None:
    def seconds() -> float:
        command = [sys.executable, "-m", "everstep", "--help"]
        environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        return used.ru_utime + used.ru_stime

    # Of a processor, and the best of some: what is measured is the work, not who else uses the machine.
    assert min(seconds() for _ in range(3)) < 1.0


def test_listing_experiments_makes_no_messages_that_it_does_not_send() -> None:
    code = """
import sys
from everstep.cli import experiment_show
from everstep.client.calls import Coordinator
from everstep.wire.operations import OPERATIONS
(listing,) = (each for each in OPERATIONS if each.name == "experiments")
listing.reply, listing.types
print(*(name for name in sys.modules if name.startswith(("everstep.wire.", "everstep.search"))))
"""
    made = {name.removeprefix("everstep.") for name in in_fresh_python(code).split()}
    assert "wire.experiments" in made
    assert not made & {f"wire.{each}" for each in ("membership", "agents", "shards", "page", "trials", "models")}
    assert not [each for each in made if each.startswith("search")]
