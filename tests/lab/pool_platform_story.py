"""One story for every platform that makes a pool's nodes: two trials, a node that dies, an empty pool at the end."""

from __future__ import annotations

from collections.abc import Callable

from lab.command import until
from lab.pool_nodes import PoolFileStage


def lose_a_node_and_let_go(stage: PoolFileStage, kill: Callable[[str], None], shown: Callable[[], str]) -> None:
    """`kill`: the node of this name, at once. The pool has room for one node more than it has trials. `shown`: all that
    the platform shows of its nodes."""

    def story() -> str:
        return f"{stage.reason()}\n{stage.trials.pool()}\n{stage.coordinator.said}"

    assert stage.trials.pool().agents == []
    experiment = stage.trials.create(2, "--hold")
    until(lambda: len(stage.trials.starts) == 2, story)
    tokens = [each.rpartition(":")[2] for each in stage.token_file.read_text().split()]
    seen = shown()
    assert "pool join" in seen and tokens and not [each for each in tokens if each in seen], seen
    victim, other = sorted(each.agent for each in stage.trials.pool().agents if each.is_present)
    kill(victim)
    until(lambda: len(stage.trials.starts) == 3, story)
    told = stage.trials.starts
    assert sorted(each["trial"] for each in told[:2]) == [1, 2]
    until(lambda: victim not in stage.present() and other in stage.present(), story)
    stage.trials.let_go()
    view = stage.trials.wait_state(experiment, "COMPLETED", "ERROR")
    assert view.state == "COMPLETED", story()
    assert [each.num_restarts for each in stage.trials.trials(experiment)] == [0, 0], "a lost node is no failure"
    until(lambda: not stage.present() and stage.reason() == "0 nodes; 0 slots wanted", story)
