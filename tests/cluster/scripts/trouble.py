"""train.py with one kind of trouble: at a step, in a micro-batch, for a worker. Without EVERSTEP_WORKER nothing
happens.

slow-update      the optimizer's step says so and then waits for gate-update
perturb          from that step on, the ballast is another one until backward has ended
slow-join        whoever joins waits at the gates forming-N, transfer-N and loaded-N, the Nth time that it is about to
                 form a group, has the beginning of a state, has loaded a state
deadly-micro-batch      whoever computes the micro-batch dies
end-early        the script breaks out of its loop
raise-forward, raise-backward, raise-after   an exception at that point of the micro-batch, once, caught by the script
raise-uncaught   the same as raise-backward, but the script dies of it
none             all wait at the gate "after", between the last step and the script's end, if there is one"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import torch
from gates import is_open, pass_gate
from torch import nn
from train import Ballast, arguments, batch, build, gated, make_optimizer, tell, trace

import everstep
from everstep.engine import transfer
from everstep.engine.group import Group
from everstep.engine.parcel import Parcel
from everstep.engine.step_work import StepWork
from everstep.events import emit


class Trouble(Exception):
    pass


class Raise(torch.autograd.Function):
    """Raises in backward when the first parameters have their gradients already."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        raise Trouble("in backward")


def wait_in_joins() -> None:
    """In a transfer, what is to come is known, and nothing of it is taken in: as long as we stand here, the sender does
    too."""
    counts: Counter[str] = Counter()

    def pass_next(place: str) -> None:
        counts[place] += 1
        pass_gate(f"{place}-{counts[place]}")

    form, begin, load = Group.form_in_generation, transfer._begin, StepWork.load

    def form_late(*args: Any) -> Group:
        pass_next("forming")
        return form(*args)

    def begin_late(parcel: Parcel) -> None:
        begin(parcel)
        pass_next("transfer")

    def load_late(work: StepWork, state: dict[str, Any]) -> None:
        load(work, state)
        pass_next("loaded")

    Group.form_in_generation, transfer._begin, StepWork.load = form_late, begin_late, load_late


def main() -> None:
    parser = arguments()
    parser.add_argument("--kind", required=True)
    parser.add_argument("--at-step", type=int, default=5)
    parser.add_argument("--at-micro-batch", type=int, default=-1)
    parser.add_argument("--worker", default="")
    args = parser.parse_args()

    me = os.environ.get("EVERSTEP_WORKER", "")
    model = everstep.DistributedDataParallel(build(args.hidden))
    trainer = everstep.ElasticTrainer(model, micro_batches=args.micro_batches, seed=7)
    ballast = Ballast(args.ballast_mb)
    trainer.register("ballast", ballast)
    trainer.register("more ballast", Ballast(args.ballast_mb))
    if args.kind in ("slow-join", "perturb") and me in args.worker.split(","):
        wait_in_joins()
    optimizer = make_optimizer(args.optimizer, model)
    optimizer, scheduler = trainer.prepare(optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=5))
    loss_fn = nn.CrossEntropyLoss()
    troubles = {(args.kind, args.at_step)} if me and args.worker in ("", me) else set()

    def is_due(kind: str, micro_batch: Any) -> bool:
        is_here = (kind, micro_batch.step) in troubles and args.at_micro_batch in (-1, micro_batch.index)
        if is_here and kind != "deadly-micro-batch":
            troubles.clear()  # once is enough
        return is_here

    def before_update(*_: Any) -> None:
        if ("slow-update", trainer.num_steps) in troubles:
            troubles.clear()
            emit("update.began", step=trainer.num_steps)
            while not is_open("update"):
                time.sleep(0.002)

    optimizer.register_step_pre_hook(before_update)

    for micro_batch in gated(trainer.micro_batches(steps=args.steps)):
        if is_due("end-early", micro_batch):
            break
        uncaught = is_due("raise-uncaught", micro_batch)
        with suppress(KeyError if uncaught else Trouble), trainer.step():
            inputs, targets = batch(micro_batch.step, micro_batch.index)
            optimizer.zero_grad()
            if is_due("deadly-micro-batch", micro_batch):
                os.kill(os.getpid(), signal.SIGKILL)
            if is_due("raise-forward", micro_batch):
                raise Trouble("in forward")
            perturbation = int(args.kind == "perturb" and micro_batch.step >= args.at_step)
            ballast.bytes += perturbation
            pass_gate(f"perturbed-{micro_batch.step}")
            hidden = model.module[:3](inputs)
            if uncaught or is_due("raise-backward", micro_batch):
                hidden = Raise.apply(hidden)
            loss = loss_fn(model.module[3:](hidden), targets)
            time.sleep(args.micro_batch_s)
            loss.backward()
            ballast.bytes -= perturbation
            if is_due("raise-after", micro_batch):
                raise Trouble("after backward")
            optimizer.step()
            scheduler.step()
        if trainer.num_steps > micro_batch.step:
            trace(trainer, model.module, optimizer)

    pass_gate("after")
    tell(model.module, optimizer, trainer)


if __name__ == "__main__":
    main()
