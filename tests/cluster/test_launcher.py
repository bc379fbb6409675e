"""The agent, the command line and the test cluster themselves, with workers that have no model (scripts/puppet.py)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from everstep.process import ENDED, Child, process_state, wait_for_end
from everstep.testing import Cluster, ClusterError, can_make_hosts
from everstep.wire import Policy
from lab.command import EVERSTEP, Command, everstep, until
from lab.patience import PATIENT
from lab.processes import children, coordinator_of
from lab.stage import Stage, pass_time

SCRIPTS = Path(__file__).parent / "scripts"
PUPPET = SCRIPTS / "puppet.py"
EAGER = replace(PATIENT, heartbeat_s=0.1)
STRICT = Policy(heartbeat_s=0.1, lease_s=6.0, arrive_s=60.0, stall_s=60.0)  # for stories in which somebody falls silent
PATIENCE = ("--lease-s=600", "--arrive-s=600", "--stall-s=600")
END_S = 60.0
FOR_EVER = "100000"
PLAINLY = {"EVERSTEP_NURSERY": "off"}  # puppets need no torch


def puppets(num_steps: str | int = FOR_EVER, *, policy: Policy = EAGER, gate: str = "", **settings: Any) -> Stage:
    return Stage(num_steps, script="puppet.py", gates=[gate] if gate else [], policy=policy, env=PLAINLY, **settings)


# --- workers --------------------------------------------------------------------------------------


def test_a_job_runs_to_its_end() -> None:
    with puppets(5, workers=2) as cluster:
        result = cluster.finish()
    assert result.exit_codes == {"node1": 0}
    assert result.weights_digest == "steps 5"
    assert {event["worker"] for event in result.events("step.committed", step=5)} == {"w0", "w1"}


def test_a_killed_worker_is_told_at_once_and_the_others_go_on() -> None:
    with puppets(workers=2) as cluster:
        cluster.wait("step.committed", worker="w0", step=2)
        cluster.kill("w1")
        exited = cluster.wait("worker.exited", worker="w1", exit_code=-9, signal="SIGKILL")
        cluster.wait("generation.joined", worker="w0", generation=2, size=1)  # far sooner than any lease runs out
        assert exited["step"] > 0


def test_the_dead_are_replaced_as_often_as_allowed() -> None:
    with puppets(workers=2, max_restarts=1) as cluster:
        cluster.wait("step.committed", worker="w1", step=1)
        cluster.kill("w1")
        cluster.wait("worker.started", worker="w2")
        cluster.wait("generation.joined", worker="w2")
        cluster.kill("w2")
        cluster.wait("worker.exited", worker="w2")
        cluster.wait("generation.joined", worker="w0", size=1)
        assert cluster.events("worker.started", worker="w3") == []


def test_a_node_is_added_while_the_job_runs() -> None:
    with puppets(workers=1) as cluster:
        cluster.wait("step.committed", worker="w0", step=1)
        assert cluster.add(2) == ["w1", "w2"]
        for worker in ("w0", "w1", "w2"):
            cluster.wait("generation.joined", worker=worker, size=3)


def test_a_frozen_worker_is_lost_and_killed() -> None:
    with puppets(workers=2, policy=STRICT) as cluster:
        cluster.wait("step.committed", worker="w1", step=1)
        cluster.freeze("w1")
        cluster.wait("worker.killed", worker="w1")
        cluster.wait("worker.exited", worker="w1", signal="SIGKILL")
        cluster.wait("generation.joined", worker="w0", size=1)


def test_a_frozen_node_is_lost_until_it_is_thawed() -> None:
    with puppets(workers=1, policy=STRICT) as cluster:
        cluster.wait("step.committed", worker="w0", step=1)
        cluster.add()
        both = cluster.wait("generation.joined", worker="w1", size=2)
        cluster.freeze("w1", with_agent=True)
        alone = cluster.wait("generation.joined", worker="w0", size=1, generation=lambda it: it > both["generation"])
        assert cluster.view().workers[1].status == "lost"
        cluster.thaw("w1")
        wait_until_back_or_killed(cluster, "w1", alone["generation"])


def wait_until_back_or_killed(cluster: Cluster, worker: str, generation: int) -> None:
    """Its agent is told to kill it, unless it has told the coordinator first that it is back."""

    def is_back_or_killed() -> bool:
        is_back = cluster.events("generation.joined", worker=worker, generation=lambda it: it > generation, size=2)
        return bool(is_back or cluster.events("worker.exited", worker=worker, signal="SIGKILL"))

    until(is_back_or_killed, lambda: f"{worker} is neither back nor killed: {cluster.view()}")


def test_a_worker_that_hangs_shows_its_stacks_before_it_is_killed() -> None:
    policy = replace(EAGER, hang_s=0.5)
    with Cluster(PUPPET, [FOR_EVER, "w1"], policy=policy, env=PLAINLY, workers=2) as cluster:
        killed = cluster.wait("worker.killed", worker="w1")
        cluster.wait("worker.exited", worker="w1", signal="SIGKILL")
        cluster.wait("generation.joined", worker="w0", size=1)
        assert "has computed for" in killed["reason"]
        # As faulthandler prints it, or py-spy.
        assert re.search(r'puppet.py", line \d+ in train|Puppet.train \(puppet.py:\d+\)', cluster.log("w1"))


# --- agents ---------------------------------------------------------------------------------------


def test_a_killed_agent_leaves_no_worker_behind() -> None:
    with puppets(workers=1) as cluster:
        cluster.wait("step.committed", worker="w0", step=1)
        cluster.add(2)
        cluster.kill_node("w1")
        assert wait_for_end(cluster.pid("w1"), END_S)
        assert wait_for_end(cluster.pid("w2"), END_S)
        assert process_state(cluster.pid("w0")) != ENDED


def test_a_terminated_agent_ends_its_workers_in_good_order() -> None:
    with puppets(workers=2, shutdown_s=END_S) as cluster:
        cluster.wait("step.committed", worker="w1", step=1)
        cluster.preempt_node("w0")
        result = cluster.finish(check=False)
    assert result.exit_codes == {"node1": 128 + signal.SIGTERM}
    assert {event["signal"] for event in result.events("worker.exited")} == {"SIGTERM"}
    assert result.events("agent.ended", reason="stopped by SIGTERM")


def test_workers_that_do_not_heed_sigterm_are_killed(tmp_path: Path) -> None:
    script = tmp_path / "stubborn.py"
    script.write_text(
        "import signal, time\n"
        "from everstep.events import emit\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "emit('stubborn')\n"
        "time.sleep(100)\n"
    )
    with Cluster(script, workers=1, policy=EAGER, env=PLAINLY, shutdown_s=0.3) as cluster:
        cluster.wait("stubborn")
        cluster.preempt_node("w0")
        result = cluster.finish(check=False)
    assert result.events("worker.exited", worker="w0", signal="SIGKILL")


def test_a_failing_script_is_named_with_its_last_lines(tmp_path: Path) -> None:
    script = tmp_path / "failing.py"
    script.write_text("print('a last word')\nraise ValueError('a bad batch')\n")
    with Cluster(script, workers=2, policy=EAGER, env=PLAINLY) as cluster:
        result = cluster.finish(check=False)
        report = (cluster.directory / "node1.log").read_text()
    assert result.exit_codes == {"node1": 1}
    assert re.search(r"first to fail: w[01], exit code 1", report)
    assert "  | a last word" in report
    assert "  | ValueError: a bad batch" in report


def test_a_stopped_job_ends_with_the_reason() -> None:
    with puppets(workers=2) as cluster:
        cluster.wait("step.committed", worker="w1", step=1)
        cluster.stop("enough is enough")
        result = cluster.finish(check=False)
        report = (cluster.directory / "node1.log").read_text()
    assert result.exit_codes == {"node1": 1}
    assert "the job failed: enough is enough" in report


def test_an_unknown_job_is_refused_with_a_reason() -> None:
    with puppets() as cluster, pytest.raises(ClusterError, match="the job ended before") as raised:
        cluster.add()
    assert "404" in str(raised.value)


# --- the coordinator ------------------------------------------------------------------------------


def test_training_goes_on_over_a_restart_of_the_coordinator() -> None:
    with puppets(workers=2) as cluster:
        cluster.wait("step.committed", worker="w0", step=3)
        cluster.restart_coordinator()
        before = cluster.events("step.committed", worker="w0")[-1]["step"]
        cluster.wait("step.committed", worker="w0", step=before + 3)
        cluster.kill("w1")
        cluster.wait("generation.joined", worker="w0", size=1)
        assert cluster.events("worker.exited", worker="w0") == []


def test_a_death_while_the_coordinator_is_away_is_told_when_it_is_back() -> None:
    with puppets(workers=2) as cluster:
        cluster.wait("step.committed", worker="w0", step=3)
        cluster.kill_coordinator()
        cluster.kill("w1")
        cluster.wait("worker.exited", worker="w1")
        cluster.start_coordinator()
        cluster.wait("generation.joined", worker="w0", size=1)


def test_a_coordinator_that_was_frozen_loses_nobody() -> None:
    """It has heard nobody for longer than a lease, which is nobody's fault but its own."""
    with puppets(workers=3, policy=replace(STRICT, heartbeat_s=1.0)) as cluster:
        cluster.wait("step.committed", worker="w1", step=2)
        assert cluster._coordinator is not None
        cluster._coordinator.signal(signal.SIGSTOP)
        pass_time(STRICT.lease_s + 1)
        cluster._coordinator.signal(signal.SIGCONT)
        before = cluster.events("step.committed")[-1]["step"]
        for worker in ("w0", "w1", "w2"):
            cluster.wait("step.committed", worker=worker, step=before + 2)
        assert cluster.events("worker.lost") == []


def test_status_shows_the_job_as_a_table() -> None:
    with puppets(workers=2) as cluster:
        cluster.wait("step.committed", worker="w0", step=1)
        arguments = ["status", "--coordinator", cluster.url, "--job", "test", "--token-file", cluster.token_file]
        told = everstep(*arguments, folder=cluster.directory).stdout
    assert "test: running, generation 1" in told
    assert re.search(r"w1 .* member", told)


def test_a_token_from_the_environment_reaches_the_workers_as_a_file(tmp_path: Path) -> None:
    with puppets(3) as cluster:
        token = cluster.token_file.read_text().strip()
        arguments = ["--coordinator", cluster.url, "--heartbeat-s", "0.1", *PATIENCE, PUPPET, "3"]
        with everstep_run(*arguments, folder=tmp_path, **PLAINLY, EVERSTEP_TOKEN=token) as run:
            assert "[w0] done" in run.finish()


def test_without_a_token_the_way_out_is_told(tmp_path: Path) -> None:
    done = everstep("run", "--coordinator", "http://127.0.0.1:9", PUPPET, "3", folder=tmp_path)
    assert done.returncode == 2
    assert "HINT: give --token-file or set EVERSTEP_TOKEN_FILE" in done.stderr


# --- hosts ----------------------------------------------------------------------------------------

needs_hosts = pytest.mark.skipif(not can_make_hosts(), reason="needs root, iproute2 and nftables")


@needs_hosts
def test_a_host_that_was_cut_off_is_lost_until_it_is_mended() -> None:
    with puppets(hosts=2, workers=2, policy=STRICT) as cluster:
        cluster.wait("step.committed", worker="w1", step=2)
        cluster.hosts.cut(2)
        alone = cluster.wait("generation.joined", worker="w0", size=1)
        assert cluster.view().workers[1].status == "lost"
        assert process_state(cluster.pid("w1")) != ENDED
        cluster.hosts.mend(2)
        wait_until_back_or_killed(cluster, "w1", alone["generation"])


@needs_hosts
def test_hosts_are_gone_after_a_failing_test() -> None:
    def namespaces() -> list[str]:
        listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
        return [line for line in listed.splitlines() if f"everstep-{os.getpid()}-" in line]

    with pytest.raises(ZeroDivisionError), puppets(hosts=2, workers=2) as cluster:
        assert namespaces()
        pids = [cluster.pid("w0"), cluster.pid("w1")]
        _ = 1 / 0
    assert namespaces() == []
    assert all(process_state(pid) == ENDED for pid in pids)
    assert not cluster.directory.exists()


def test_a_process_that_has_the_number_of_a_dead_worker_is_left_alone() -> None:
    with puppets() as cluster, Child.start(["sleep", "600"]) as stranger:
        worker = {"event": "worker.started", "worker": "w0", "agent": "node1", "pid": stranger.pid, "t": 0.0}
        (cluster.directory / "events.jsonl").write_text(json.dumps(worker) + "\n")
        cluster.close()
        assert stranger.wait(0) is None


# --- waiting --------------------------------------------------------------------------------------


def test_waiting_in_vain_tells_the_story() -> None:
    with puppets(3, workers=1, gate="1") as cluster:
        with pytest.raises(ClusterError, match="not within 0 s: no.such.event") as raised:
            cluster.wait("no.such.event", timeout_s=0)
        assert "worker.started" in str(raised.value)
        (cluster.directory / "gate-1").touch()
        with pytest.raises(ClusterError, match=r"the job ended before: step\.committed step=4"):
            cluster.wait("step.committed", step=4)


# --- everstep run ---------------------------------------------------------------------------------


def everstep_run(*arguments: object, folder: Path, **env: str) -> Command:
    own = {"XDG_RUNTIME_DIR": str(folder)}  # no nursery that another story has left warm
    return Command(*EVERSTEP, "run", *arguments, folder=folder, **own, **env)


def test_run_brings_its_own_coordinator(tmp_path: Path) -> None:
    arguments = ["--nproc_per_node", "2", "--heartbeat-s", "0.1", *PATIENCE, PUPPET, "5"]
    with everstep_run(*arguments, folder=tmp_path, **PLAINLY) as run:
        output = run.finish()
    assert "[w0] done" in output
    assert "[w1] done" in output
    assert "generation 1 formed by w" in output
    assert re.search(r"finished: 5 steps in [\d.]+ s, goodput \d+%, 0 deaths survived", output)
    (directory,) = (tmp_path / "runs").iterdir()
    assert directory.stat().st_mode & 0o777 == 0o700
    assert (directory / "token").stat().st_mode & 0o777 == 0o600


def test_the_scripts_own_options_are_left_alone(tmp_path: Path) -> None:
    script = tmp_path / "echo.py"
    script.write_text("import os, sys; print(sys.argv[1:], os.environ['WORLD_SIZE'], os.environ['RANK'])\n")
    done = everstep("run", "--nproc-per-node=1", script, "--max_restarts", "-m", "x_y", folder=tmp_path, **PLAINLY)
    assert "[w0] ['--max_restarts', '-m', 'x_y'] 1 0" in done.stdout


def wait_for_pids(run: Command) -> list[int]:
    """Of both workers. They may be quicker than the lines that say that they were started."""
    run.wait_said(r"w\d+ started \(pid \d+\)", num_times=2)
    return [int(pid) for pid in re.findall(r"started \(pid (\d+)\)", run.said)]


def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    # What is started in the background by a shell ignores SIGINT, and so would all that it starts.
    heeding = ["env", "--default-signal=INT", *EVERSTEP, "run"]
    arguments = ["--nproc-per-node=2", "--heartbeat-s=0.1", *PATIENCE, PUPPET, FOR_EVER]
    with Command(*heeding, *arguments, folder=tmp_path, **PLAINLY) as run:
        run.wait_said("generation 1 formed")
        pids = wait_for_pids(run)
        run.signal(signal.SIGINT)
        assert run.exit_code() == 130
    assert len(pids) == 2
    assert all(process_state(pid) == ENDED for pid in pids)


def test_a_killed_run_leaves_nothing_behind(tmp_path: Path) -> None:
    arguments = ["--nproc-per-node=2", "--heartbeat-s=0.1", *PATIENCE, PUPPET, FOR_EVER]
    with everstep_run(*arguments, folder=tmp_path) as run:
        run.wait_said("generation 1 formed")
        pids = wait_for_pids(run) + children(run.process.pid)
        run.signal(signal.SIGKILL)
        run.exit_code()
    assert len(set(pids)) == 5  # two workers, the coordinator, the nursery and the sweeper
    assert all(wait_for_end(pid, END_S) for pid in pids)


def test_run_starts_a_dead_coordinator_again(tmp_path: Path) -> None:
    arguments = ["--nproc-per-node=1", "--heartbeat-s=0.1", *PATIENCE, PUPPET, "5"]
    held = PLAINLY | {"EVERSTEP_EVENTS": str(tmp_path / "events.jsonl"), "GATES": "2"}
    with everstep_run(*arguments, folder=tmp_path, **held) as run:
        run.wait_said("generation 1 formed")
        os.kill(coordinator_of(run.process.pid), signal.SIGKILL)
        run.wait_said(r"the coordinator ended \(killed by SIGKILL\) and is started again")
        (tmp_path / "gate-2").touch()
        run.finish()
