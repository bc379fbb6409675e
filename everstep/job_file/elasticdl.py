"""Reads a whole `elasticdl train …` command line. Each worker pod is a node with one worker.

--job_command runs any script; models that ElasticDL itself would train (--model_def) have no script."""

from __future__ import annotations

from collections.abc import Sequence

from everstep.errors import UsageError
from everstep.job_file.draft import Draft
from everstep.job_file.launched import put_shell_line
from everstep.job_file.tree import Tree

_STOCK_MASTER = "elasticdl/elasticdl"
# Of ElasticDL's own runtime: with --job_command they have no effect there either.
_NOTHING_HERE = {
    *("need_elasticdl_job_service", "need_task_manager", "need_pod_manager", "task_fault_tolerance"),
    *("need_tf_config", "log_level", "force_use_kube_config_file"),
}
_BOOLEANS = _NOTHING_HERE - {"log_level"} | {"use_async", "lr_staleness_modulation", "relaunch_timeout_worker"}
_ALLREDUCE = "AllreduceStrategy"


def is_elasticdl(words: Sequence[str]) -> bool:
    return bool(words) and words[0].rpartition("/")[2] == "elasticdl"


def tree_of(words: Sequence[str]) -> Tree:
    """Its options as a tree; the last of each wins."""
    command = words[1] if len(words) > 1 else ""
    if command != "train":
        message = f"elasticdl {command}: only `elasticdl train` becomes a job"
        raise UsageError(message, hint="images are made by `everstep build`", code="elasticdl-command-unknown")
    options: dict[str, Tree] = {}
    rest = list(words[2:])
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise UsageError(
                f"{word!r} is not an option", hint="quote values that contain spaces", code="elasticdl-not-an-option"
            )
        name, equals, value = word[2:].partition("=")
        name = name.replace("-", "_")
        if not equals:
            has_value = bool(rest) and not rest[0].startswith("--")
            if not has_value and name not in _BOOLEANS:
                raise UsageError(f"{word} has no value", hint=f"{word}=VALUE", code="elasticdl-option-without-value")
            value = rest.pop(0) if has_value else "true"
        options[name] = Tree(value=value, text=value)
    return Tree(value=options)


def read(draft: Draft) -> None:
    _check_strategy(draft)
    draft.put("name", value=draft.text("job_name"))
    _read_command(draft)
    num_workers = draft.whole("num_workers")
    num_workers = 2 if num_workers is None else num_workers
    # Its jobs continue with the remaining workers.
    draft.put("nodes", value=f"1:{num_workers}" if num_workers != 1 else 1)
    draft.put("workers_per_node", value=1)
    _read_images(draft)
    for role, target in (("worker", ("resources",)), ("master", ("coordinator", "resources"))):
        _read_resources(draft, role, target)
    draft.put("env", value=_pairs(draft, "envs"))
    draft.put("shards", "minibatches_per_shard", value=draft.whole("num_minibatches_per_task"))
    draft.put("platform", "kubernetes", "namespace", value=draft.text("namespace"))
    draft.put("platform", "kubernetes", "pull_policy", value=draft.text("image_pull_policy"))
    _read_volumes(draft)
    _read_priority(draft)
    if (policy := draft.text("restart_policy")) not in (None, "Never"):
        draft.say(f"--restart_policy={policy} was not carried over: the coordinator replaces pods")
    for name in _NOTHING_HERE:
        draft.take(name)
    draft.data.setdefault("platform", {}).setdefault("kubernetes", {})


def _check_strategy(draft: Draft) -> None:
    strategy = draft.text("distribution_strategy") or "ParameterServerStrategy"
    if strategy != _ALLREDUCE:
        is_given = draft.look("distribution_strategy") is not None
        raise UsageError(
            f"--distribution_strategy={strategy}{'' if is_given else ', the default'}: Everstep trains by all-reduce",
            hint=f"--distribution_strategy={_ALLREDUCE}",
            code="elasticdl-strategy-unsupported",
        )
    if draft.whole("num_ps_pods"):
        raise UsageError(
            "--num_ps_pods: Everstep has no parameter servers", hint="leave it out", code="elasticdl-parameter-servers"
        )


def _read_command(draft: Draft) -> None:
    command = draft.text("job_command")
    if command is None:
        raise UsageError(
            "--job_command is missing: a model trained by ElasticDL's own loop has no script to run",
            hint='--job_command="python -m model_zoo.mnist.mnist_pytorch"',
            code="elasticdl-job-command-missing",
        )
    put_shell_line(draft, command, {})


def _read_images(draft: Draft) -> None:
    master, worker = draft.text("image_name"), draft.text("worker_image")
    draft.put("image", value=worker or master)
    if not master or not worker or master == worker:
        return
    if master.rpartition(":")[0] == _STOCK_MASTER or master == _STOCK_MASTER:
        draft.say(
            f"--image_name={master} holds ElasticDL's master: the coordinator runs in the workers' image; "
            "another one that has Everstep in it is coordinator.image"
        )
    else:
        draft.put("coordinator", "image", value=master)
        draft.say(f"--image_name={master} became the coordinator's image; it must contain Everstep")


def _read_resources(draft: Draft, role: str, target: tuple[str, ...]) -> None:
    request, limit = _pairs(draft, f"{role}_resource_request"), _pairs(draft, f"{role}_resource_limit")
    for name in ("cpu", "memory"):
        value, most = request.pop(name, None), limit.pop(name, None)
        draft.put(*target, name, value=value or most)
        if value is not None and most != value:
            draft.put(*target, "limits", name, value=most)
    gpus = [found for kind in (request, limit) for key in ("gpu", "nvidia.com/gpu") if (found := kind.pop(key, None))]
    if role == "worker":
        draft.put(*target, "gpu", value=gpus[-1] if gpus else None)
    for name in {**request, **limit}:
        draft.say(f"--{role}_resource_request: {name} was not carried over")


def _read_volumes(draft: Draft) -> None:
    text = draft.text("volume")
    volumes = []
    for part in filter(str.strip, (text or "").split(";")):
        given = _split_pairs("volume", part)
        claim, path, target = (given.pop(key, None) for key in ("claim_name", "host_path", "mount_path"))
        if target is None or (claim is None) == (path is None):
            hint = "host_path=…,mount_path=… or claim_name=…,mount_path=…"
            raise UsageError(f"--volume={part}", hint=hint, code="elasticdl-volume-incomplete")
        volumes.append({"source": f"pvc:{claim}" if claim else path, "target": target})
        for name in given:
            draft.say(f"--volume: {name} was not carried over")
    draft.put("volumes", value=volumes)


def _read_priority(draft: Draft) -> None:
    if (priority := draft.text("worker_pod_priority")) is None:
        return
    if priority.replace(".", "").isdigit():
        draft.say(f"--worker_pod_priority={priority}: a share of pods was not carried over; all have one priority")
    else:
        draft.put("platform", "kubernetes", "priority_class", value=priority)


def _pairs(draft: Draft, name: str) -> dict[str, str]:
    text = draft.text(name)
    return _split_pairs(name, text) if text else {}


def _split_pairs(name: str, text: str) -> dict[str, str]:
    """ "a=1,b=2" """
    found = {}
    for part in filter(str.strip, text.split(",")):
        key, equals, value = part.strip().partition("=")
        if not equals or not key:
            raise UsageError(
                f"--{name}: {part!r} is not a pair", hint="NAME=VALUE,NAME=VALUE", code="elasticdl-not-a-pair"
            )
        found[key.strip()] = value
    return found
