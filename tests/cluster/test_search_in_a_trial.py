"""A search program that is itself a trial of a real pool: it has the trial's own token and links to code."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

from everstep import wire
from lab import search_method
from lab.command import EVERSTEP, run, until
from lab.pool_stage import PoolStage
from lab.processes import are_gone

SEARCH = """
import os, pathlib, sys
from everstep.searcher import RemoteSearchRunner
from search_method import CONFIG, BestOfThree, Gate

(pathlib.Path(sys.argv[1]) / f"search-{os.getpid()}").touch()
config = {**CONFIG, "entrypoint": "train.py", "args": [sys.argv[1]], "hyperparameters": {}}
RemoteSearchRunner(BestOfThree(Gate())).run(config)
"""
TRAIN = """
import pathlib, sys, time
import everstep

folder, x, step = pathlib.Path(sys.argv[1]), everstep.get_hparams()["x"], 1
(folder / f"began-{x}").touch()
while not (folder / "go").exists():
    time.sleep(0.02)
while everstep.report({"loss": 1 / (x + step)}, step=step):
    step += 1
"""
FILE = """
name: search
entrypoint: search.py
args: [{folder}]
searcher: {{name: single, metric: loss}}
restarts: 1
"""


def test_a_search_inside_a_trial_continues_after_a_kill(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "search.py").write_text(SEARCH)
    (code / "train.py").write_text(TRAIN)
    shutil.copy(search_method.__file__, code)
    (tmp_path / "exp.yaml").write_text(FILE.format(folder=tmp_path))
    with PoolStage(tmp_path, EVERSTEP_NURSERY="off") as stage:
        stage.join(slots=2)
        reach = ("--coordinator", stage.url, "--token-file", stage.token_file)
        created = run(*EVERSTEP, "e", "create", "exp.yaml", "code", *reach, folder=tmp_path)
        assert created.returncode == 0, created.stderr

        def story() -> str:
            return str(stage.trials.trials(1))

        until(lambda: (tmp_path / "began-0").exists() or stage.trials.view(1).state in wire.ENDED, story)
        (killed,) = (int(each.name[7:]) for each in tmp_path.glob("search-*"))
        os.kill(killed, signal.SIGKILL)
        until(lambda: are_gone([killed]) and len(list(tmp_path.glob("search-*"))) == 2, story)
        stage.trials.let_go()

        assert stage.trials.wait_state(1, *wire.ENDED).state == "COMPLETED"
        assert [each.num_restarts for each in stage.trials.trials(1)] == [1]
        found = [(each.hparams, each.length, each.state) for each in stage.trials.trials(2)]
        assert found == [({"x": x}, 8 if x == 2 else 4, "COMPLETED") for x in range(3)]
        with stage.connect() as coordinator:
            assert coordinator.experiment(2).created_by == "e1-t1"
            assert coordinator.experiments().num_found == 2, "the second start has found the first one's experiment"
