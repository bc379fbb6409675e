"""Workers that are forks of the nursery: as plainly started ones in all that a script can see, and never left."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from everstep.ipc.event_loop import EventLoop
from everstep.launcher.starter import Starter, nursery_environment
from everstep.nursery.client import NurseryClient
from everstep.process import Child, Exit, wait_for_end
from lab import command
from lab.command import ROOT, until

SCRIPTS = Path(__file__).parent / "scripts"
READY_S = 240.0
END_S = 240.0


def environment(**more: str) -> dict[str, str]:
    return nursery_environment(command.environment(), num_workers=2) | more


@pytest.fixture(scope="module")
def nursery() -> Iterator[NurseryClient]:
    made = NurseryClient.start(environment())
    assert made.await_ready(READY_S), made.last_words() or made.problem
    yield made
    made.close()


Start = Callable[..., Child]


def run(start: Start, command: Sequence[str], folder: Path, env: dict[str, str] | None = None) -> tuple[Exit, str]:
    """How it ended, and all that it wrote."""
    log = folder / "worker.log"
    with log.open("wb") as output:
        child = start([sys.executable, "-u", *command], env=env or environment(), output=output, cwd=folder)
    with child:
        ended = child.wait(END_S)
        assert ended is not None, log.read_text()
    return ended, log.read_text()


def run_code(nursery: NurseryClient, code: str, folder: Path, env: dict[str, str] | None = None) -> str:
    (folder / "script.py").write_text(textwrap.dedent(code))
    ended, output = run(nursery.start_worker, ["script.py"], folder, env)
    assert ended == Exit(code=0), output
    return output


# --- as a plain start -------------------------------------------------------------------------------

ENDINGS = {
    "its last line": "print('done')",
    "exit with a code": "import sys; sys.exit(3)",
    "exit with words": "import sys; sys.exit('enough')",
    "exit at once": "import os; os._exit(5)",
    "an exception": """
        def f():
            raise ValueError("no")
        try:
            f()
        except ValueError as error:
            raise KeyError(1) from error
    """,
    "an interrupt": "import os, signal; os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(9)",
    "SIGTERM": "import os, signal; os.kill(os.getpid(), signal.SIGTERM); import time; time.sleep(9)",
    "SIGKILL": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "a mistake": "x = (1,\nprint(x",
    "a hook of its own": "import sys; sys.excepthook = lambda *e: print('hook', e[1]); 1 / 0",
    "handlers and threads": """
        import atexit, sys, threading
        atexit.register(lambda: print("last", sys.last_type, sys.last_value, sys.last_traceback.tb_lineno))
        threading.Thread(target=lambda: (threading.main_thread().join(), print("thread"))).start()
        raise RuntimeError("main")
    """,
    "an object's last act": """
        import os
        class Last:
            def __del__(self, write=os.write):
                write(1, b"deleted")
        last = Last()
    """,
    "something else among the modules": """
        import sys, types
        class Library:
            __slots__, __class__ = (), types.ModuleType
        sys.modules["library"] = Library()
    """,
    "a line of C": "import ctypes; ctypes.CDLL(None).puts(b'a line')",
    "a thread that is still at work": """
        import sys, threading
        def work():
            while True:  # imports only: within torch's own code, a plain end would abort
                import torch.nn
        threading.Thread(target=work, daemon=True).start()
        sys.exit(4)
    """,
    "a handler that needs torch": """
        import atexit, torch
        def handler():
            import torch.nn, everstep.native
            print(torch.nn.Linear(2, 2), everstep.native.__name__)
        atexit.register(handler)
    """,
}  # fmt: skip


@pytest.mark.parametrize("code", ENDINGS.values(), ids=ENDINGS.keys())
@pytest.mark.parametrize("command", [["script.py", "a", "-b"], ["-m", "script", "a"]], ids=["script", "module"])
def test_it_ends_as_a_plain_start_does(nursery: NurseryClient, tmp_path: Path, code: str, command: list[str]) -> None:
    (tmp_path / "script.py").write_text(textwrap.dedent(code))

    assert run(nursery.start_worker, command, tmp_path) == run(Child.start, command, tmp_path)


MICRO_BATCHES_FILES_TO_BE_CLOSED = """
import torch
text, raw = open("text", "w"), open("raw", "wb")
torch.mine = open("held by a module", "w")
text.write("1"), raw.write(b"2"), torch.mine.write("3")
"""


@pytest.mark.parametrize("is_plain", [False, True], ids=["nursery", "plain"])
def test_files_that_nobody_closes_are_written(nursery: NurseryClient, tmp_path: Path, is_plain: bool) -> None:
    (tmp_path / "script.py").write_text(MICRO_BATCHES_FILES_TO_BE_CLOSED)
    run(Child.start if is_plain else nursery.start_worker, ["script.py"], tmp_path)

    assert [(tmp_path / name).read_text() for name in ("text", "raw", "held by a module")] == ["1", "2", "3"]


LOOK = """
import json, os, re, signal, subprocess, sys
main = sys.modules["__main__"]
def open_files():
    targets = {name: os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")}
    return {name: re.sub(r"[0-9]+", "N", target) for name, target in targets.items()}
print(json.dumps({
    "names": {name: str(value) for name, value in vars(main).items() if name not in ("__builtins__", "__loader__")},
    "loader": type(__loader__).__name__,
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "flags": str(sys.flags),
    "environment": sorted(os.environ.items()),
    "inherited": sorted(subprocess.check_output(["env", "-0"], text=True).split(chr(0))),
    "cwd": os.getcwd(), "descriptors": open_files(), "stdin": sys.stdin.read(),
    "streams": [(s.mode, s.encoding, s.errors, s.line_buffering, s.write_through) for s in (sys.stdout, sys.stderr)],
    "handlers": {number: str(signal.getsignal(number)) for number in sorted(signal.valid_signals())},
    "wakeup": signal.set_wakeup_fd(-1), "umask": os.umask(0), "leads": os.getsid(0) == os.getpgid(0) == os.getpid(),
    "warnings": sys.warnoptions, "hooks": [sys.excepthook is sys.__excepthook__, sys.gettrace(), sys.getprofile()],
}, default=str))
"""  # fmt: skip


def look(start: Start, command: list[str], folder: Path, env: dict[str, str] | None = None) -> dict[str, object]:
    ended, output = run(start, command, folder, env)
    assert ended.is_good, output
    seen: dict[str, object] = json.loads(re.sub(r" at 0x[0-9a-f]+", "", output))
    return seen


@pytest.mark.parametrize("command", ["look.py a ü", "./sub/../look.py", "link.py", "-m look x", "-m package", "app"])
def test_a_script_sees_what_it_sees_after_a_plain_start(nursery: NurseryClient, tmp_path: Path, command: str) -> None:
    (tmp_path / "look.py").write_text(LOOK)
    for folder in ("sub", "package", "app"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__main__.py").write_text(LOOK)
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "link.py").symlink_to("sub/__main__.py")

    assert look(nursery.start_worker, command.split(), tmp_path) == look(Child.start, command.split(), tmp_path)


def test_a_worker_is_known_by_its_name_and_script(nursery: NurseryClient, tmp_path: Path) -> None:
    code = """
        from pathlib import Path
        print(Path("/proc/self/cmdline").read_bytes().rstrip(bytes(1)).decode())
        print(Path("/proc/self/comm").read_text())
    """
    told = run_code(nursery, code, tmp_path, environment(EVERSTEP_WORKER="w7")).split("\n")
    assert told[:2] == ["everstep w7: script.py", "everstep w7"]


# What torch's import does on aarch64, on every machine.
MICRO_BATCHES_FILES_OPEN = """
import importlib.abc, os, sys
class Leak(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            sys.meta_path.remove(self)
            print("left open", [os.open("/sys/devices/system/cpu/online", os.O_RDONLY) for _ in range(17)])
sys.meta_path.insert(0, Leak())
"""


def test_a_script_has_no_file_that_an_import_of_torch_left_open(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(MICRO_BATCHES_FILES_OPEN)
    (tmp_path / "look.py").write_text(LOOK)
    env = environment(PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    nursery = NurseryClient.start(env)
    assert nursery.await_ready(READY_S), nursery.last_words() or nursery.problem

    assert "left open" in nursery.last_words()
    assert look(nursery.start_worker, ["look.py"], tmp_path, env) == look(Child.start, ["look.py"], tmp_path, env)
    nursery.close()


@pytest.mark.parametrize("command", [["nothing.py"], ["-m", "nothing"], ["-m", "everstep.nothing"]])
def test_a_program_that_is_not_there(nursery: NurseryClient, tmp_path: Path, command: list[str]) -> None:
    assert run(nursery.start_worker, command, tmp_path) == run(Child.start, command, tmp_path)


IS_WARM = "import sys; warm = 'torch._dynamo' in sys.modules; import torch; print(warm, torch.get_num_threads())"


def test_torch_is_there_already_with_the_right_number_of_threads(nursery: NurseryClient, tmp_path: Path) -> None:
    assert run_code(nursery, IS_WARM, tmp_path).split() == ["True", "1"]


def test_what_is_read_at_the_start_and_differs_makes_the_start_a_plain_one(
    nursery: NurseryClient, tmp_path: Path
) -> None:
    assert run_code(nursery, IS_WARM, tmp_path, environment(OMP_NUM_THREADS="2")).split() == ["False", "2"]


def test_a_module_beside_the_script_comes_first(nursery: NurseryClient, tmp_path: Path) -> None:
    (tmp_path / "sympy.py").write_text("mine = True")
    assert run_code(nursery, "import sympy; print(sympy.mine)", tmp_path) == "True\n"


def test_brothers_draw_different_random_numbers(nursery: NurseryClient, tmp_path: Path) -> None:
    code = """
        import random, numpy, torch, multiprocessing
        print(torch.initial_seed(), torch.rand(1).item(), random.random(), numpy.random.rand(),
              bytes(multiprocessing.current_process().authkey).hex())
    """
    first, second = (run_code(nursery, code, tmp_path).split() for _ in range(2))
    assert len(set(first + second)) == 10


def test_seeds_give_the_numbers_of_a_plain_start(nursery: NurseryClient, tmp_path: Path) -> None:
    code = "import torch, numpy; torch.manual_seed(7); numpy.random.seed(7); print(torch.rand(3), numpy.random.rand(3))"
    output = run_code(nursery, code, tmp_path)
    assert run(Child.start, ["script.py"], tmp_path) == (Exit(code=0), output)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_data_loaders_work(nursery: NurseryClient, tmp_path: Path, method: str) -> None:
    code = f"""
        import torch
        class Squares(torch.utils.data.Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, index):
                return index * index
        if __name__ == "__main__":
            loader = torch.utils.data.DataLoader(Squares(), 4, num_workers=2, multiprocessing_context="{method}")
            print([batch.tolist() for batch in loader])
    """
    assert run_code(nursery, code, tmp_path) == "[[0, 1, 4, 9], [16, 25, 36, 49]]\n"


def test_a_first_step_needs_no_further_module_of_torch(nursery: NurseryClient, tmp_path: Path) -> None:
    code = """
        import sys
        before = set(sys.modules)
        import torch, torch.distributed as dist
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        print(sorted(set(sys.modules) - before))
    """
    assert run_code(nursery, code, tmp_path) == "[]\n"


WAITS = "import time\ndef waits():\n    print('on')\n    time.sleep(60)\nwaits()"


def test_it_shows_its_stacks_when_asked(nursery: NurseryClient, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(WAITS)
    log, command = tmp_path / "log", [sys.executable, "-u", "script.py"]
    with (
        log.open("wb") as output,
        nursery.start_worker(command, env=environment(), output=output, cwd=tmp_path) as child,
    ):
        until(lambda: "on" in log.read_text())
        child.signal(signal.SIGUSR2, is_for_group=False)
        until(lambda: 'script.py", line 4 in waits' in log.read_text())


def test_how_many_gpus_there_are(nursery: NurseryClient) -> None:
    code = "import torch; print(torch.cuda.device_count())"
    counted = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True
    )
    assert nursery.num_gpus() == int(counted.stdout)


# --- deaths -----------------------------------------------------------------------------------------

WITH_A_CHILD = """
import os, subprocess, time
os.write(1, b"%d\\n" % subprocess.Popen(["sleep", "600"]).pid)  # at once: others may write there too
time.sleep(600)
"""


def start_with_a_child(start: Start, folder: Path) -> tuple[Child, int]:
    """A worker, and the pid of what it has started."""
    (folder / "parent.py").write_text(WITH_A_CHILD)
    log = folder / "parent.log"
    with log.open("wb") as output:
        child = start([sys.executable, "-u", "parent.py"], env=environment(), output=output, cwd=folder)
    until(lambda: log.read_text().endswith("\n"))
    return child, int(log.read_text())


def test_a_worker_is_killed_with_all_that_it_has_started(nursery: NurseryClient, tmp_path: Path) -> None:
    child, grandchild = start_with_a_child(nursery.start_worker, tmp_path)
    assert child.kill() == Exit(code=-signal.SIGKILL)
    assert wait_for_end(grandchild, END_S)


def test_one_that_was_killed_by_others_is_seen_at_once(nursery: NurseryClient, tmp_path: Path) -> None:
    child, grandchild = start_with_a_child(nursery.start_worker, tmp_path)
    assert child.wait(0) is None
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait(END_S) == Exit(code=-signal.SIGKILL)
    assert wait_for_end(grandchild, END_S)


def test_workers_die_with_the_nursery(tmp_path: Path) -> None:
    nursery = NurseryClient.start(environment())
    assert nursery.await_ready(READY_S)
    child, grandchild = start_with_a_child(nursery.start_worker, tmp_path)
    os.kill(nursery.pid, signal.SIGKILL)
    assert child.wait(END_S) == Exit(code=-signal.SIGKILL)
    assert wait_for_end(grandchild, END_S)  # by our hand, as it is in its parent's group
    nursery.close()


AGENT = """
import os, sys, time
from everstep.nursery.client import NurseryClient
nursery = NurseryClient.start(dict(os.environ))
assert nursery.await_ready(240)
child = nursery.start_worker([sys.executable, "-u", "parent.py"], env=dict(os.environ), output=None, cwd=None)
print(nursery.pid, child.pid, flush=True)
time.sleep(600)
"""


def test_a_killed_agent_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(WITH_A_CHILD)
    command = [sys.executable, "-c", AGENT]
    with subprocess.Popen(command, env=environment(), cwd=tmp_path, stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        pids = [int(pid) for _ in range(2) for pid in agent.stdout.readline().split()]
        agent.kill()
        assert len(pids) == 3
        assert all(wait_for_end(pid, END_S) for pid in pids)


def turn_until(loop: EventLoop, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + READY_S
    while not condition():
        assert time.monotonic() < deadline
        loop.after(0.05, lambda: None)
        loop.turn()


def test_without_a_nursery_workers_are_started_plainly_until_there_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(IS_WARM)
    said: list[str] = []
    loop = EventLoop()
    with Starter.open([sys.executable, "-u", "script.py"], num_workers=2, outer=environment()) as starter:
        starter.attach(loop, said.append)

        def here(command: Sequence[str], *, cwd: Path, **settings: object) -> Child:
            return starter.start(command, **settings)

        settled: list[bool] = []
        starter.when_settled(lambda: settled.append(True))
        turn_until(loop, lambda: settled)
        turn_until(loop, lambda: starter.nursery_pid)  # on a busy machine it is not waited for, and comes later
        first = starter.nursery_pid
        assert run(here, ["script.py"], tmp_path)[1].split() == ["True", "1"]

        os.kill(first, signal.SIGKILL)
        turn_until(loop, lambda: starter.nursery_pid is None)
        assert run(here, ["script.py"], tmp_path)[1].split() == ["False", "1"]
        assert "the nursery has ended" in said[0]

        turn_until(loop, lambda: starter.nursery_pid)
        assert run(here, ["script.py"], tmp_path)[1].split() == ["True", "1"]


def test_a_process_with_threads_is_no_nursery(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    )
    nursery = NurseryClient.start(environment(PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}"))
    assert not nursery.await_ready(READY_S)
    assert "have started threads" in nursery.problem
    nursery.close()
