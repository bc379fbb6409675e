"""Test mode in this terminal alone: the first trial of an experiment, one batch, one validation and one checkpoint, as
`everstep run` runs it, in a copy of the packed code that is removed afterwards."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from everstep import env, wire
from everstep.job_file.arg_templates import fill
from everstep.job_file.order import NodeOrder
from everstep.jobs.new_experiments import PreparedExperiment
from everstep.jobs.node import setup_script
from everstep.process import Child
from everstep.search.draws import trial_seed
from everstep.search.read_space import read_space
from everstep.storage import code_archive, private_file
from everstep.wire.encoding import to_json

_FIRST = 1
_ENDING_S = 30.0


def run_test(prepared: PreparedExperiment, say: Callable[[str], None]) -> int:
    """The exit code."""
    with tempfile.TemporaryDirectory(prefix="everstep-test-") as name:
        folder = Path(name)
        code = folder / "code"
        code.mkdir()
        code_archive.extract(prepared.code.data, prepared.code.sha256, code)
        config = folder / "experiment.json"
        first = first_config(prepared.spec)
        private_file.write(config, to_json(first))
        variables = {**env.everything(), **_variables(prepared.spec), **prepared.secrets, env.EXPERIMENT: str(config)}
        say(f"test: one batch, one validation, one checkpoint of the first trial; {prepared.code.files.summary}")
        child = Child.start(_command(prepared.spec, folder, first["hyperparameters"]), env=variables, cwd=code)
        exit_code = _wait(child)
        say("the test succeeded" if exit_code == 0 else f"the test failed: exit code {exit_code}")
        return exit_code


def first_config(spec: wire.ExperimentSpec) -> dict[str, Any]:
    """The file for the first trial: its own hyperparameters, and test mode."""
    space = read_space(spec.hyperparameters, num_micro_batches=spec.num_micro_batches)
    return {
        **spec.config,
        "hyperparameters": space.sample(spec.seed, _FIRST),
        "reproducibility": {"experiment_seed": trial_seed(spec.seed, _FIRST)},
        "test_mode": True,
    }


def _variables(spec: wire.ExperimentSpec) -> dict[str, str]:
    return {str(name): str(value) for name, value in (spec.order.get("env") or {}).items()}


def _command(spec: wire.ExperimentSpec, folder: Path, hparams: Mapping[str, Any]) -> list[str]:
    order = NodeOrder(**{"job": "test", "name": "test", **spec.order})
    kind = ["--module"] if order.is_module else ["--no-python"] if order.is_program else []
    words = ["run", "--log-dir", str(folder / "runs"), *kind, order.script, *fill(order.args, hparams)]
    if order.setup:
        return ["bash", "-c", setup_script(order.setup, words)]
    return [sys.executable, "-m", "everstep", *words]


def _wait(child: Child) -> int:
    try:
        ended = child.wait()
    except KeyboardInterrupt:
        child.signal(signal.SIGTERM, is_for_group=False)
        ended = child.wait(_ENDING_S) or child.kill()
    assert ended is not None
    return ended.code if ended.code >= 0 else 128 - ended.code
