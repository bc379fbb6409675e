"""Reads Determined's experiment file (`det experiment create det.yaml .`).

Everstep replaces its launcher. In a job (`read`), its slots are workers. In an experiment (`read_trial`), they are the
most that a trial uses, and the pool assigns them. The file may also contain Everstep keys that Determined lacks."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from everstep.job_file.draft import Draft
from everstep.job_file.entrypoint import class_words, is_class
from everstep.job_file.experiment_keys import Searcher
from everstep.job_file.launched import put_command, put_shell_line
from everstep.job_file.quantity import format_size
from everstep.job_file.schema import TEXT_PATHS, Job
from everstep.job_file.tree import Tree

_ENVIRONMENT = ("environment",)
_STORAGE = ("checkpoint_storage",)
_SCHEMES = {"s3": "s3", "gcs": "gs", "azure": "az"}
_KEPT = {
    "save_trial_latest": "keep_latest",
    "save_trial_best": "keep_best",
    "save_experiment_best": "keep_experiment_best",
}
_AS_THEY_ARE = ("hyperparameters", "data", "searcher", "log_policies")
_PERIODS = ("min_validation_period", "min_checkpoint_period")
_TEXTS = ("name", "description", "notes")
_BOTH = {*_AS_THEY_ARE, *_PERIODS, *_TEXTS, "entrypoint", "resources", "labels", "records_per_epoch"}
_OUR_KEYS = Job.model_fields.keys() - _BOTH
_THEIR_KEYS = {
    *("checkpoint_storage", "max_restarts", "bind_mounts", "reproducibility", "scheduling_unit"),
    *(
        "perform_initial_validation",
        "profiling",
        "optimizations",
        "workspace",
        "project",
        "environment",
        "integrations",
    ),
}


def is_determined(tree: Tree) -> bool:
    """Known by keys that a native file does not have, or by Determined's module in the entrypoint. A file with only
    shared keys counts as Determined's."""
    if not isinstance(tree.value, dict) or tree.at("entrypoint") is None or tree.at("kind") is not None:
        return False
    entrypoint, keys = str(tree.value["entrypoint"].written()), tree.value.keys()
    has_theirs = bool(_THEIR_KEYS & keys) and tree.at("searcher") is not None
    is_either = tree.at("resources", "slots_per_trial") is not None or bool(keys & {*_PERIODS, "records_per_epoch"})
    return "determined.launch" in entrypoint or has_theirs or (is_either and not _OUR_KEYS & keys)


def read(draft: Draft) -> None:
    """As one job."""
    _read_all(draft)
    _read_slots(draft)


def read_trial(draft: Draft) -> None:
    """As a trial of an experiment."""
    _read_all(draft)
    draft.put("resources", "slots_per_trial", value=draft.whole("resources", "slots_per_trial"))
    _read_scheduling(draft)
    for system in ("slurm", "pbs"):
        draft.take(system, "slot_type")  # the pool's slots are what they are
    entrypoint = draft.look("entrypoint")
    if entrypoint is not None and is_class(entrypoint.text):
        draft.take("optimizations", "aggregation_frequency")  # the harness finds it in the config


def _read_scheduling(draft: Draft) -> None:
    """How the experiment shares its pool. Determined's preemption_timeout is at the top of the file."""
    for key in ("max_slots", "priority"):
        draft.put("resources", key, value=draft.whole("resources", key))
    for key in ("weight", "pool"):
        draft.put("resources", key, value=draft.text("resources", key))
    draft.put("resources", "pool", value=draft.text("resources", "resource_pool"))
    timeout_s = draft.text("preemption_timeout") or draft.text("resources", "preemption_timeout")
    draft.put("resources", "preemption_timeout", value=timeout_s)


def _read_all(draft: Draft) -> None:
    for key in _TEXTS:
        draft.put(key, value=draft.text(key))
    _read_entrypoint(draft)
    for key in _AS_THEY_ARE:
        if found := draft.take(key):
            draft.put(key, value=found.plain())
    _read_searcher(draft)
    _read_labels(draft)
    _read_environment(draft)
    _read_storage(draft)
    _read_mounts(draft)
    draft.put("restarts", value=draft.whole("max_restarts"))
    draft.put("seed", value=draft.whole("reproducibility", "experiment_seed"))
    draft.put("records_per_epoch", value=draft.whole("records_per_epoch") or None)
    for key in _PERIODS:
        _read_period(draft, key)
    draft.put("resources", "min_slots", value=draft.whole("resources", "min_slots"))
    draft.put("resources", "shm", value=_shm(draft))
    draft.put("platform", "slurm", "raw", value=draft.texts("slurm", "sbatch_args"))
    draft.put("platform", "pbs", "raw", value=draft.texts("pbs", "pbsbatch_args"))
    _read_webhooks(draft)
    _read_ours(draft)


def _read_webhooks(draft: Draft) -> None:
    """Webhooks by their names; the IDs are those of another system."""
    names = draft.texts("integrations", "webhooks", "webhook_name")
    draft.put("webhooks", "names", value=names)
    draft.put("webhooks", "exclude", value=draft.text("integrations", "webhooks", "exclude") == "true" or None)
    if ids := draft.texts("integrations", "webhooks", "webhook_id"):
        draft.say(
            f"integrations.webhooks.webhook_id: {', '.join(ids)} was not carried over: name the webhooks in `webhooks`"
        )


def _read_entrypoint(draft: Draft) -> None:
    entrypoint = draft.take("entrypoint")
    if entrypoint is None:
        raise draft.refused(
            "entrypoint is missing", hint="entrypoint: python3 train.py", code="determined-entrypoint-missing"
        )
    if isinstance(entrypoint.value, list):
        put_command(draft, tuple(draft.texts("entrypoint")), {})
    elif is_class(entrypoint.text):
        put_command(draft, ("python", *class_words(entrypoint.text)), {})
    else:
        put_shell_line(draft, entrypoint.text, {})


def _shm(draft: Draft) -> str | None:
    """As Docker reads it: all units are powers of 1024, in any case. Others are left as they are."""
    text = draft.text("resources", "shm_size")
    if text is None or (found := re.fullmatch(r"(\d+(?:\.\d+)?) ?(b|[kmgtp](?:i?b)?)", text.strip(), re.I)) is None:
        return text
    return format_size(int(Fraction(found[1]) * 1024 ** "bkmgtp".index(found[2][0].lower())))


def _read_period(draft: Draft, key: str) -> None:
    """{batches: 100}, or a number of batches; 0: none."""
    if (found := draft.take(key)) is not None:
        period = found.plain()
        draft.put(key, value=period if any(period.values() if isinstance(period, dict) else [period]) else None)


def _read_ours(draft: Draft) -> None:
    """Keys that only we have. Determined's names take precedence; arguments and variables are combined."""
    keys = draft.tree.value.keys() if isinstance(draft.tree.value, dict) else ()
    for key in [key for key in keys if key in _OUR_KEYS]:
        value = draft.tree.at(key)
        given: Any = None if value is None else value.plain(TEXT_PATHS, (key,))
        before = draft.data.get(key)
        if key == "args" and isinstance(given, list) and before:
            given = [*before, *given]
        elif key == "env" and isinstance(given, dict) and before:
            given = {**before, **given}
        elif before is not None:
            continue
        draft.take(key)
        draft.put(key, value=given)


def _read_slots(draft: Draft) -> None:
    """Slots are the total number of workers. The file does not say how many fit on a node."""
    num_slots = draft.whole("resources", "slots_per_trial")
    is_single = draft.text("resources", "is_single_node") == "true"
    if num_slots is None or num_slots < 1:
        return
    draft.put("workers_per_node", value=num_slots)
    draft.put("resources", "slots_per_trial", value=num_slots)  # micro-batches, also if there are fewer workers
    is_on_cpu = _is_for_cpus(draft)
    draft.put("resources", "gpu", value=None if is_on_cpu else num_slots)
    if num_slots > 1 and not is_single:
        draft.say(
            f"resources.slots_per_trial: {num_slots} became {num_slots} workers on one node: "
            "set `nodes`, `workers_per_node`, and `resources.gpu` to spread them"
        )
    if not is_on_cpu:
        draft.say(
            f"resources.slots_per_trial: {num_slots} asks for {num_slots} GPU{'s' * (num_slots > 1)}; "
            "if the slots are CPUs, use --set resources.gpu=0"
        )


def _is_for_cpus(draft: Draft) -> bool:
    """Whether the file says that slots are CPUs. By default, they are GPUs."""
    kinds = [draft.text(system, "slot_type") for system in ("slurm", "pbs")]
    image = draft.look(*_ENVIRONMENT, "image")
    is_cpu_image = image is not None and isinstance(image.value, dict) and set(image.value) == {"cpu"}
    return "cpu" in kinds or is_cpu_image


def _read_searcher(draft: Draft) -> None:
    searcher = draft.data.get("searcher")
    if not isinstance(searcher, dict):
        return
    for key in [key for key in searcher if key not in Searcher.model_fields]:
        searcher.pop(key)
        draft.say(f"searcher.{key} was not carried over")


def _read_labels(draft: Draft) -> None:
    """Determined's labels have no values."""
    found = draft.look("labels")
    if found is not None and isinstance(found.value, list):
        draft.put("labels", value=dict.fromkeys(draft.texts("labels"), ""))
    elif found is not None:
        draft.put("labels", value=draft.mapping("labels"))


def _read_environment(draft: Draft) -> None:
    image = _one_of(draft, *_ENVIRONMENT, "image")
    draft.put("image", value=image.plain() if image else None)
    variables = _one_of(draft, *_ENVIRONMENT, "environment_variables")
    items = variables.value if variables else []
    if not isinstance(items, list) or not all(item.is_scalar for item in items):
        message = "environment.environment_variables is not a list of texts"
        raise draft.refused(message, hint="- NAME=value", code="determined-variables-not-a-list")
    pairs = [item.text for item in items]
    env = {name: value for name, equals, value in (pair.partition("=") for pair in pairs) if equals}
    for pair in pairs:
        if "=" not in pair:
            draft.say(f"environment variable {pair}: has no value; set it in `env`")
    draft.put("env", value=env)
    if pod := draft.take(*_ENVIRONMENT, "pod_spec"):
        known = {"apiVersion", "kind"}  # of any pod
        raw = {key: each.plain() for key, each in pod.children() if key not in known}
        draft.put("platform", "kubernetes", "raw", value=raw)
    if draft.take(*_ENVIRONMENT, "registry_auth"):
        draft.say("environment.registry_auth was not carried over: platform.kubernetes.pull_secrets names a secret")


def _one_of(draft: Draft, *path: str) -> Tree | None:
    """A value for all, or one for each kind of machine: GPUs go first."""
    found = draft.take(*path)
    if found is None or not isinstance(found.value, dict):
        return found
    kinds = [kind for kind in ("cuda", "gpu", "rocm", "cpu") if found.at(kind) is not None]
    if len(kinds) > 1:
        draft.say(f"{'.'.join(path)}: used the value for {kinds[0]}, not for {', '.join(kinds[1:])}")
    return found.at(kinds[0]) if kinds else None


def _read_storage(draft: Draft) -> None:
    if (found := draft.look(*_STORAGE)) is None:
        return
    if found.is_scalar:
        draft.put("checkpoint", "uri", value=draft.text(*_STORAGE))
        return
    kind = draft.text(*_STORAGE, "type") or "shared_fs"
    if kind in _SCHEMES:
        bucket = draft.text(*_STORAGE, "bucket") or draft.text(*_STORAGE, "container")
        prefix = (draft.text(*_STORAGE, "prefix") or "").strip("/")
        draft.put("checkpoint", "uri", value=f"{_SCHEMES[kind]}://{bucket}/{prefix}".rstrip("/"))
    elif kind in ("shared_fs", "directory"):
        parts = (draft.text(*_STORAGE, key) for key in ("host_path", "container_path", "storage_path"))
        draft.put("checkpoint", "uri", value="/".join(part.rstrip("/") for part in parts if part))
    else:
        raise draft.refused(
            f"checkpoint_storage.type: {kind}",
            path=_STORAGE,
            hint="shared_fs, directory, s3, gcs or azure",
            code="determined-storage-type-unknown",
        )
    for theirs, ours in _KEPT.items():
        draft.put("checkpoint", ours, value=draft.whole(*_STORAGE, theirs))


def _read_mounts(draft: Draft) -> None:
    volumes = []
    for mount in draft.items("bind_mounts"):
        source, target = (draft.text(*mount, key) for key in ("host_path", "container_path"))
        is_readonly = draft.text(*mount, "read_only") == "true"
        if source is None or target is None:
            raise draft.refused(
                "a mount without host_path and container_path", path=mount, code="determined-mount-incomplete"
            )
        target = target if target.startswith("/") else f"/run/determined/workdir/{target}"
        volumes.append({"source": source, "target": target, "readonly": is_readonly})
    draft.put("volumes", value=volumes)
