"""In a real pool, a script has its experiment's secrets and its trial's own token, and nothing else shows them."""

from __future__ import annotations

import stat
from pathlib import Path

from everstep import wire
from everstep.wire.tokens import WORKER, parse_tokens
from lab.command import EVERSTEP, run, until
from lab.log_writer import everything
from lab.people import ALICE, as_, write_tokens
from lab.pool_stage import PoolStage
from lab.refused import refused

TRAIN = """
import os, pathlib, sys, time
import everstep
from everstep.experimental import client

folder = pathlib.Path(sys.argv[1])
print("the secret is", os.environ["KEY"], flush=True)
print("the secret of the setup is", os.environ["FROM_SETUP"], flush=True)
print("the token is", pathlib.Path(os.environ["EVERSTEP_TOKEN_FILE"]).read_text(), flush=True)
assert "EVERSTEP_TOKEN" not in os.environ
(folder / "token-file").write_text(os.environ["EVERSTEP_TOKEN_FILE"])
try:
    client.get_experiment(1)
except Exception as error:
    (folder / "error-aside").write_text(str(error))
    (folder / "error-aside").rename(folder / "error")
while not (folder / "go").exists():
    time.sleep(0.02)
everstep.report({"loss": 1.0}, step=1)
"""
FILE = """
entrypoint: train.py
args: [{folder}]
setup: ['export FROM_SETUP="$KEY"']
secrets: {{KEY: 'env:MY_KEY'}}
searcher: {{name: single, metric: loss}}
"""
VALUE = "hunter2-of-alice"


def test_a_script_has_its_secret_and_its_token_and_nobody_else(tmp_path: Path) -> None:
    write_tokens(tmp_path)
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(TRAIN)
    (tmp_path / "exp.yaml").write_text(FILE.format(folder=tmp_path))
    with PoolStage(tmp_path) as stage:
        stage.join(slots=1)
        reach = {"EVERSTEP_COORDINATOR": stage.url, "EVERSTEP_TOKEN": ALICE, "MY_KEY": VALUE}
        created = run(*EVERSTEP, "e", "create", "exp.yaml", "code", folder=tmp_path, **reach)
        assert created.returncode == 0, created.stderr
        until(lambda: (tmp_path / "error").exists(), lambda: str(stage.trials.trials(1)))
        token_file = Path((tmp_path / "token-file").read_text())
        (token,) = parse_tokens(token_file.read_text())
        assert token.role == WORKER and stat.S_IMODE(token_file.stat().st_mode) == 0o600
        assert "alone" in (tmp_path / "error").read_text(), "even its own experiment is not for its token"
        _kept_nowhere(stage, tmp_path)
        stage.trials.let_go()
        assert stage.trials.wait_state(1, *wire.ENDED).state == "COMPLETED"

        with as_(stage, ALICE, "e1-t1") as alice:
            printed = "".join(line.text for line in everything(alice))  # one call has limited time
            assert "the secret is ***" in printed and "the secret of the setup is ***" in printed
            assert VALUE not in printed and token.word not in printed
            assert VALUE not in f"{alice.view()}{alice.about()}{alice.experiment_config(1)}"
        with as_(stage, str(token), "e1-t1") as own, refused("trial-over"):
            own.view()


def _kept_nowhere(stage: PoolStage, folder: Path) -> None:
    """But in the store, which only its owner can read, and in what the worker itself has printed."""
    found = {path.name for path in folder.rglob("*") if VALUE.encode() in _content(path)}
    assert found <= {"store.db", "store.db-wal", "stdout.log", "worker.log", "stdout"}, found
    store = folder / "store.db"
    assert stat.S_IMODE(store.stat().st_mode) == 0o600


def _content(path: Path) -> bytes:
    """Empty if it is no file, or none any more: what runs there still replaces files."""
    try:
        return path.read_bytes() if path.is_file() else b""
    except FileNotFoundError:
        return b""
