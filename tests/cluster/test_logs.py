"""What workers print is at the coordinator, each line once: after the death of a node, an agent, the coordinator."""

from __future__ import annotations

from pathlib import Path

from everstep.client.calls import Coordinator
from everstep.env import read_token
from everstep.testing import Cluster
from everstep.testing.cluster import JOB
from everstep.wire import LoggedLine, LogsRequest, Policy
from lab.command import until

SCRIPT = Path(__file__).parent / "scripts" / "printer.py"


def lines_of(cluster: Cluster, **wanted: object) -> list[LoggedLine]:
    found, cursor = list[LoggedLine](), ""
    with Coordinator(cluster.url, read_token(cluster.token_file), JOB) as coordinator:
        while True:
            view = coordinator.logs(LogsRequest(cursor=cursor, **wanted))  # type: ignore[arg-type]
            found, cursor = found + view.lines, view.next
            if view.is_end:
                return found


def printed(cluster: Cluster, worker: str) -> list[str]:
    return [each.text for each in lines_of(cluster, worker=worker) if each.stream == "stdout"]


def all_lines(worker: str, num_lines: int) -> list[str]:
    return [f"{worker} line {number}" for number in range(num_lines)]


def test_a_node_is_gone_and_its_lines_are_there(tmp_path: Path) -> None:
    with Cluster(SCRIPT, [tmp_path / "enough", 50, 0], workers=1, policy=Policy(undecided_s=0.1)) as cluster:
        until(lambda: printed(cluster, "w0") == all_lines("w0", 50))
        cluster.kill_node("w0")
        (cluster.directory / JOB / "w0" / "stdout.log").unlink()

        assert printed(cluster, "w0") == all_lines("w0", 50)
        warning, *_ = lines_of(cluster, level=30, worker="w0")
        assert (warning.text, warning.stream, warning.node) == ("WARNING: about to print", "stderr", "node1")
        assert any("w0 started" in each.text for each in lines_of(cluster, node="node1"))  # said by its agent


def test_the_coordinator_is_killed_while_lines_come_and_each_is_there_once(tmp_path: Path) -> None:
    with Cluster(SCRIPT, [tmp_path / "enough", 400, 0.01], workers=2) as cluster:
        for at_least in (50, 200):
            until(lambda at_least=at_least: len(printed(cluster, "w0")) > at_least)  # type: ignore[misc]
            cluster.restart_coordinator()
        (tmp_path / "enough").touch()
        cluster.finish()

        for worker in ("w0", "w1"):
            assert printed(cluster, worker) == [*all_lines(worker, 400), "enough"]


def test_what_a_killed_agent_has_not_sent_is_sent_by_the_next_one_of_its_folder(tmp_path: Path) -> None:
    with Cluster(SCRIPT, [tmp_path / "enough", 300, 0.01], workers=1) as cluster:
        until(lambda: len(printed(cluster, "w0")) > 20)
        cluster.kill_coordinator()
        stdout = cluster.directory / JOB / "w0" / "stdout.log"
        until(lambda: "line 299\n" in stdout.read_text())
        cluster.kill_node("w0")
        cluster.start_coordinator()
        assert len(printed(cluster, "w0")) < 300

        cluster.add()
        until(lambda: printed(cluster, "w0") == all_lines("w0", 300))
        assert printed(cluster, "w0") == all_lines("w0", 300)


def test_lines_beyond_the_bound_of_a_node_are_counted(tmp_path: Path) -> None:
    script = tmp_path / "much.py"
    script.write_text(
        "import sys, time, os\n"
        "print('first', flush=True)\n"
        f"while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.02)\n"
        "for number in range(40_000): print(number, 'x' * 100)\n"
        "sys.stdout.flush()\n"
        f"while not os.path.exists({str(tmp_path / 'enough')!r}): time.sleep(0.02)\n"
    )
    with Cluster(script, workers=1, policy=Policy(node_log_mb=1)) as cluster:
        until(lambda: printed(cluster, "w0") == ["first"])  # from now on its agent knows the bound
        cluster.kill_coordinator()
        (tmp_path / "go").touch()
        stdout = cluster.directory / JOB / "w0" / "stdout.log"
        until(lambda: stdout.stat().st_size > 4_000_000 and stdout.stat().st_blocks * 512 < 1_200_000)
        cluster.start_coordinator()
        until(lambda: printed(cluster, "w0")[-1].startswith("39999 "))

        with Coordinator(cluster.url, read_token(cluster.token_file), JOB) as coordinator:
            (note,) = coordinator.logs(LogsRequest(limit=1)).notes
        dropped = int(note.split()[0].replace(",", ""))
        kept = lines_of(cluster, worker="w0")
        assert dropped + len(kept) == 40_001
        assert kept[1].line == dropped + 1 and kept[1].text.startswith(f"{dropped} ")
        (tmp_path / "enough").touch()
        cluster.finish()
