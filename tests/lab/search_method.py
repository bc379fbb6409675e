"""A search program as a user writes it: `python search_method.py CODE FOLDER [GATE [NUMBER]]`.

Tests stop it where GATE says, for good: "save", while its method writes its state; "post", when its operations are
posted and its own copy of the state is not yet there; "create", when its experiment is created and it does not know
which one it is; "remote" has no gate, and runs inside a trial. NUMBER: of the time that it comes by there."""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path

from everstep.searcher import (
    Close,
    Create,
    LocalSearchRunner,
    Operation,
    RemoteSearchRunner,
    SearcherState,
    SearchMethod,
    Shutdown,
    ValidateAfter,
    search_loop,
    search_runner,
)

CONFIG = {
    "name": "three",
    "entrypoint": "python3 train.py",
    "searcher": {"name": "custom", "metric": "loss", "unit": "batches"},
    "hyperparameters": {},
}


class Gate:
    def __init__(self, name: str = "", number: int = 1) -> None:
        self.name, self.left = name, number

    def pass_(self, name: str) -> None:
        self.left -= name == self.name
        if name == self.name and self.left == 0:
            (Path(sys.argv[2]) / "reached").touch()
            while True:
                sys.stdin.read(1)  # the test holds the other end


class BestOfThree(SearchMethod):
    """Three trials train to 4; the best one to 8."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.losses: dict[str, float] = {}

    def initial_operations(self, searcher_state: SearcherState) -> list[Operation]:
        names = [uuid.uuid4() for _ in range(3)]
        created = [Create(name, {"x": number}, None) for number, name in enumerate(names)]
        return [*created, *(ValidateAfter(name, 4) for name in names)]

    def on_trial_created(self, searcher_state: SearcherState, request_id: uuid.UUID) -> list[Operation]:
        return []

    def on_validation_completed(
        self, searcher_state: SearcherState, request_id: uuid.UUID, metric: float, train_length: int
    ) -> list[Operation]:
        if train_length == 8:
            return [Close(request_id)]
        self.losses[str(request_id)] = metric
        if len(self.losses) < 3:
            return []
        best, *others = sorted(self.losses, key=lambda name: self.losses[name])
        return [ValidateAfter(uuid.UUID(best), 8), *(Close(uuid.UUID(name)) for name in others)]

    def on_trial_closed(self, searcher_state: SearcherState, request_id: uuid.UUID) -> list[Operation]:
        return [Shutdown()] if len(searcher_state.trials_closed) == 3 else []

    def on_trial_exited_early(self, searcher_state, request_id, exited_reason) -> list[Operation]:
        return []

    def progress(self, searcher_state: SearcherState) -> float:
        return len(searcher_state.trials_closed) / 3

    def save_method_state(self, path: Path) -> None:
        self.gate.pass_("save")
        (path / "losses.json").write_text(json.dumps(self.losses))

    def load_method_state(self, path: Path) -> None:
        self.losses = json.loads((path / "losses.json").read_text())


def main(code: str, folder: str, gate_name: str = "", number: str = "1") -> None:
    gate = Gate(gate_name, int(number))
    keep_copy, create = search_loop.keep_copy, search_runner._create

    def gated_copy(made: Path, to: Path) -> None:
        gate.pass_("post")
        keep_copy(made, to)

    def gated_create(*given: object) -> int:
        made = create(*given)  # type: ignore[arg-type]
        gate.pass_("create")
        return made

    search_loop.keep_copy, search_runner._create = gated_copy, gated_create
    method = BestOfThree(gate)
    runner = RemoteSearchRunner(method) if gate_name == "remote" else LocalSearchRunner(method, folder)
    print(runner.run(CONFIG, code), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
