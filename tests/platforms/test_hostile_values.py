"""Any text in any value of a job file: it is refused, or what is submitted means the same but for that value."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from everstep.errors import UsageError
from everstep.job_file.load import load
from everstep.job_file.schema import TEXT_PATHS
from everstep.job_file.tree import dump
from everstep.platforms.base import Ticket, platform_of
from everstep.platforms.cluster_folder import order_for_queue
from everstep.storage.code_archive import Code

TICKET = Ticket(
    id="mnist-1", folder=Path("/work/runs/mnist-1"), workdir=Path("/work"), code=Code(sha256="c0de" * 16, data=b"")
)
QUEUES: dict[str, dict[str, Any]] = {
    "slurm": {"slurm": {}},
    "slurm array": {"slurm": {"mode": "array"}},
    "slurm allocation": {"slurm": {"mode": "allocation"}},
    "pbs": {"pbs": {}},
    "pbs ssh": {"pbs": {"launcher": "ssh"}},
}
MANIFESTS: dict[str, dict[str, Any]] = {
    "kubernetes": {"kubernetes": {}},
    "compose": {"compose": {}},
    "oci": {"oci": {"compartment": "c", "project": "p", "shape": "VM.GPU.A10.2", "work_dir": "oci://b@n/w"}},
}
PIECES = ["\n", "\r", "\t", "\u2028", "'", '"', "`", "$(touch /tmp/x)", "$HOME", "\\", ";", "#", " ", "\0", "\x1b"]
PIECES += [
    "@MIN@",
    "@COORDINATE@",
    "%x",
    "a",
    "1",
    ": ",
    "- ",
    "{",
    "&",
    "*",
    "|",
    "---\n",
    "\nEOF\n",
    "ü",
    "#SBATCH -p y",
]
EXAMPLES = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
hostile = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join)


def paths(platform: str) -> list[tuple[str, ...]]:
    """Of the keys that hold texts, general ones and the platform's own."""
    return sorted(each for each in TEXT_PATHS if each[0] != "platform" or each[1:2] == (platform.split()[0],))


LISTS = {"args", "setup", "raw", "pull_secrets", "start_options"}
MAPPINGS = {"env", "labels", "secrets", "node_selector", "freeform_tags"}


def described(platform: dict[str, Any], path: tuple[str, ...] = (), value: str = "") -> str:
    """A job file with this value at this place."""
    job: dict[str, Any] = {
        "name": "mnist",
        "entrypoint": ["train.py"],
        "image": "i:1",
        "resources": {"gpu": 2},
        "volumes": [{"source": "oci://b@n/d" if "oci" in platform else "/data", "target": "/data"}],
        "platform": json.loads(json.dumps(platform)),
    }
    if path == ("entrypoint",):
        job["entrypoint"] = ["train.py", value]
    elif path[:1] == ("volumes",):
        job["volumes"][0][path[1]] = value if path[1] == "source" else f"/{value}"
    elif path:
        holder = job
        for name in path[:-1]:
            holder = holder.setdefault(name, {})
        last = path[-1]
        holder[last] = [value] if last in LISTS else {"A": value} if last in MAPPINGS or last == "args" else value
    return dump(job)


def rendered(text: str, ticket: Ticket = TICKET) -> str | None:
    """None: it was refused."""
    try:
        job = load(text).job
        script = platform_of(job.platform.chosen).render(job, ticket).text
    except UsageError:
        return None
    return script.replace(shlex.quote(order_for_queue(job, ticket).to_json()), "ORDER")  # quoted as one word


def program(script: str) -> list[str]:
    """What a shell would do."""
    read = subprocess.run(["bash", "-n"], input=script.encode(), capture_output=True, check=False)
    assert read.returncode == 0, read.stderr.decode()
    return [line for line in script.split("\n") if not line.startswith("#")]


@pytest.mark.parametrize("queue", QUEUES)
@EXAMPLES
@given(data=st.data())
def test_no_value_becomes_a_line_of_a_batch_script(queue: str, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(paths(queue)))
    script = rendered(described(QUEUES[queue], path, data.draw(hostile)))
    assume(script is not None and path[-1] != "signal")
    plain = rendered(described(QUEUES[queue], path, "x"))
    assume(plain is not None)

    assert program(script) == program(plain)


@pytest.mark.parametrize("queue", ["slurm", "pbs ssh"])
@settings(EXAMPLES, max_examples=15)
@given(name=hostile.map(lambda text: text.replace("\0", "").replace("/", "")))
def test_no_folder_becomes_an_option_or_a_command_of_a_batch_script(queue: str, name: str) -> None:
    folder = Path("/work", name or "x", "runs", "mnist-1")
    script = rendered(described(QUEUES[queue]), replace(TICKET, folder=folder, workdir=folder.parents[1]))
    assume(script is not None)

    program(script)
    options, _, rest = script.partition("\numask 077\n")
    assert all(line.startswith("#") for line in options.split("\n") if line)
    plain, *_ = rendered(described(QUEUES[queue])).partition("\numask 077\n")
    assert len(options.split("\n")) == len(plain.split("\n"))
    assert f"\nfolder={shlex.quote(str(folder))}\n" in f"\n{rest}"


@pytest.mark.parametrize("platform", MANIFESTS)
@EXAMPLES
@given(data=st.data())
def test_no_value_becomes_another_key_of_a_manifest(platform: str, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(paths(platform)))
    text = rendered(described(MANIFESTS[platform], path, data.draw(hostile)))
    assume(text is not None)
    plain = rendered(described(MANIFESTS[platform], path, "x"))
    assume(plain is not None)

    assert shape(list(yaml.safe_load_all(text))) == shape(list(yaml.safe_load_all(plain)))


def shape(value: Any) -> Any:
    """Its keys and types, without its values. Invalid Kubernetes labels are left out."""
    if isinstance(value, dict):
        return {key: shape(each) for key, each in value.items() if key not in ("labels", "annotations")}
    return [shape(each) for each in value] if isinstance(value, list) else type(value).__name__


@pytest.mark.parametrize(
    ("where", "value", "told"),
    [
        ("slurm", {"partition": "gpu\ntouch /tmp/x"}, "2 lines where one is expected"),
        ("slurm", {"partition": "gpu\n"}, "a line break"),
        ("slurm", {"account": 'a"b'}, "contains '\"'"),
        ("slurm", {"signal": "USR2; touch /tmp/x"}, "signal"),
        ("slurm", {"raw": ["--exclude=n7\ntouch /tmp/x"]}, "2 lines where one is expected"),
        ("pbs", {"queue": "work -l x"}, "contains ' '"),
        ("pbs", {"select": "a=b\n"}, "a line break"),
        ("kubernetes", {"store": "a node"}, "store"),
    ],
)
def test_what_would_break_a_script_is_refused_with_its_place(where: str, value: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match="platform") as refused:
        load(dump({"entrypoint": "train.py", "platform": {where: value}}))
    assert told in str(refused.value)


def test_the_python_of_the_submitter_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/it's/$(touch x)/python")
    for queue in QUEUES.values():
        script = rendered(described(queue))
        assert script is not None and program(script)
        assert "python='/it'\"'\"'s/$(touch x)/python'" in script
