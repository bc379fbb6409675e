"""`everstep.pytorch.init()`: the context of a trial, under `python`, `torchrun`, `everstep run` and in a job."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist

from everstep import env
from everstep.core.cluster_info import experiment_config
from everstep.core.distributed import EngineContext
from everstep.engine import process_engine
from everstep.engine.arguments import check_count
from everstep.engine.backend import check_wish
from everstep.engine.seeds import seed_everything
from everstep.pytorch.context import PyTorchTrialContext
from everstep.record.trial import current_trial


@contextlib.contextmanager
def init(
    *,
    hparams: Mapping[str, Any] | None = None,
    exp_conf: Mapping[str, Any] | None = None,
    distributed: Any = None,
    aggregation_frequency: int = 1,
    enable_tensorboard_logging: bool = True,
    micro_batches: int | None = None,
    reduce: str = "exact",
    backend: str | None = None,
    seed: int | None = None,
    threads: int = 1,
    checkpoints: str | os.PathLike[str] | None = None,
) -> Iterator[PyTorchTrialContext]:
    """A context for a PyTorchTrial and its Trainer; use both inside the `with`.

    hparams, exp_conf: default to those of the job file. distributed: not needed; the workers find each other.
    micro_batches: how many micro-batches make up a global batch; defaults to the job file's slots_per_trial, otherwise
    to the largest number of workers.
    reduce: "exact" gives the same bits for every number of workers, "fast" does not. threads: of torch, in exact mode.
    backend: how gradients travel: "nccl", "gloo", or "auto"; defaults to EVERSTEP_BACKEND, otherwise to "auto".
    seed: for the initial weights and all randomness; defaults to the trial's, otherwise to the job file's
    experiment_seed. checkpoints: a directory or URL to save them in."""
    if backend is not None:
        check_wish(backend)
    exp_conf = dict(experiment_config() if exp_conf is None else exp_conf)
    hparams = dict((exp_conf.get("hyperparameters") or {}) if hparams is None else hparams)
    if seed is None:
        trial, configured = current_trial(), (exp_conf.get("reproducibility") or {}).get("experiment_seed")
        seed = int(configured or 0) if trial is None else trial.seed
    is_several = env.coordinator_url() is not None or env.torchrun_size() > 1
    has_torchs_group = dist.is_available() and dist.is_initialized() and not process_engine.is_default_group_ours()
    engine = process_engine.current(is_fixed=has_torchs_group)
    if is_several and not has_torchs_group:
        process_engine.follow_world()
    else:
        engine.regrouping.join()
    seed_everything(seed)
    context = PyTorchTrialContext(
        engine=engine,
        hparams=hparams,
        exp_conf=exp_conf,
        distributed=EngineContext(engine) if distributed is None else distributed,
        device=_device(),
        micro_batches=_micro_batches(micro_batches, exp_conf),
        aggregation_frequency=aggregation_frequency,
        enable_tensorboard_logging=enable_tensorboard_logging,
        seed=seed,
        reduce=reduce,
        backend=backend,
        threads=threads,
        checkpoints=os.fspath(checkpoints) if checkpoints is not None else None,
    )
    try:
        yield context
    finally:
        if not is_several:
            process_engine.close()  # the next context of this process gets a new engine


def _micro_batches(given: int | None, exp_conf: Mapping[str, Any]) -> int:
    configured = (exp_conf.get("resources") or {}).get("slots_per_trial")
    micro_batches = given if given is not None else configured if configured is not None else env.max_workers()
    return check_count("micro_batches", micro_batches, of="micro-batches", code="micro-batches-not-positive")


def _device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", int(env.place_on_node()) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device
