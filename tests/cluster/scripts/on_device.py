"""A job on a GPU or on the CPU, with the features that models on GPUs use: other number types, autocast, torch.compile,
CUDA graphs, activation checkpointing. Batches are keyed by (step, micro-batch); the last of a step is short.

What happens to it is in the environment, so that an undisturbed run has the same arguments. HOLDS, a list of
PLACE@STEP:WORKER, has a worker wait at a gate:
  forward, backward (of its last micro-batch, when most parameters have gradients), update
  forming@N    after the hellos of its Nth settling, before it forms a communicator with the others
  transfer@N   when the beginning of the Nth state that it receives is there
RAISES=WORKER:N has a worker raise in backward in every Nth step, and go on. MICRO_BATCH_S makes it slow, BALLAST_MB its
state large. With SAMPLES, it reports its memory, threads and descriptors after each step."""

from __future__ import annotations

import argparse
import logging
import os
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

import torch
from gates import hold
from resources import sample, settle
from synchronizations import Trace
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from train import Ballast, gated, tell, trace

import everstep
from everstep.engine import regroup, transfer
from everstep.events import emit

SAMPLES, SHORT = 8, 3


class Trouble(Exception):
    pass


class Net(nn.Module):
    """`checkpointing`: "": none; "plain", "reentrant": of the body; "all": reentrant, of everything."""

    def __init__(self, hidden: int, checkpointing: str) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.2))
        self.body = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
        self.head = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 4))
        self.checkpointing = checkpointing
        self.side: torch.cuda.Stream | None = None  # for the body
        self.in_forward: Callable[[], None] | None = None
        self.in_backward: Callable[[Tensor], None] | None = None

    def forward(self, images: Tensor) -> Tensor:
        if self.checkpointing == "all":
            return checkpoint(lambda x: self.head(self.body(self.stem(x))), images.requires_grad_(), use_reentrant=True)
        features = self.stem(images)
        if self.in_forward is not None:
            self.in_forward()
        if self.in_backward is not None and features.requires_grad:
            features.register_hook(self.in_backward)
        if self.checkpointing:
            features = checkpoint(self.body, features, use_reentrant=self.checkpointing == "reentrant")
        elif self.side is not None:
            features = self._beside(features, self.side)
        else:
            features = self.body(features)
        return self.head(features)

    def _beside(self, features: Tensor, side: torch.cuda.Stream) -> Tensor:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            features = self.body(features)
        torch.cuda.current_stream().wait_stream(side)
        return features


class Batches:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.dtype = getattr(torch, args.dtype)
        self.resident = {index: self._draw(0, index) for index in range(args.micro_batches if args.profile else 0)}

    def of(self, step: int, index: int) -> tuple[Tensor, Tensor]:
        return self.resident[index] if index in self.resident else self._draw(step, index)

    def weight(self, index: int) -> int:
        return SHORT if index == self.args.micro_batches - 1 else SAMPLES

    def _draw(self, step: int, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1_000_003 * step + index)
        size = SAMPLES if self.args.one_size else self.weight(index)  # the weight is enough to tell them apart
        images = torch.randn(size, 3, 8, 8, generator=generator)
        labels = images[:, 0, 0, :4].argmax(dim=1)
        layout = torch.channels_last if self.args.channels_last else torch.contiguous_format
        return images.to(self.args.device, self.dtype, memory_format=layout), labels.to(self.args.device)


def hold_in_regroupings() -> None:
    """Hold inside the engine, which knows nothing about these gates."""
    check_fit, begin = regroup.check_fit, transfer._begin
    count = {"forming": 0, "transfer": 0}

    def at(place: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def held(*args: Any) -> Any:
            result = act(*args)
            count[place] += 1
            hold(place, count[place])
            return result

        return held

    regroup.check_fit = at("forming", check_fit)
    transfer._begin = at("transfer", begin)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cpu", "cuda"], required=True)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--one-size", action="store_true", help="all micro-batches have one size, even the last")
    parser.add_argument("--micro-batches", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--reduce", default="exact")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--autocast", default="", help="autocast to this type; with a GradScaler if it is float16")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--graphs", action="store_true", help="run the body as CUDA graphs")
    parser.add_argument("--two-streams", action="store_true", help="run the body on its own stream")
    parser.add_argument("--checkpointing", default="")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--profile", action="store_true", help="count host synchronizations in steps 10 to 19")
    return parser.parse_args()


def linger(gradient: Tensor) -> Tensor:
    """The GPU reaches this gradient long after the host."""
    torch.cuda._sleep(50_000_000)
    return gradient


def build(args: argparse.Namespace) -> tuple[Net, Callable[[Tensor], Tensor]]:
    """The model, and what to call."""
    torch.manual_seed(0)
    model = Net(args.hidden, args.checkpointing).to(args.device, getattr(torch, args.dtype))
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)
    if args.two_streams:
        model.side = torch.cuda.Stream()
        model.body[0].weight.register_hook(linger)
    if args.graphs:
        features = torch.randn(SAMPLES, 16, 8, 8, device=args.device, requires_grad=True)
        torch.cuda.make_graphed_callables(model.body, (features,))
    if args.compile:
        with suppress(AttributeError):  # of newer torch: no choice of kernels by their speed
            torch._inductor.config.deterministic = True
        return model, torch.compile(model, dynamic=False)
    return model, model


def watch(model: Net, trainer: everstep.ElasticTrainer) -> None:
    """Places in forward and backward where the model emits an event, waits, or fails."""
    worker, every = (os.environ.get("RAISES") or ":0").split(":")
    raised: set[int] = set()

    def in_forward() -> None:
        hold("forward", trainer.num_steps)

    def in_backward(gradient: Tensor) -> None:
        step = trainer.num_steps
        if not trainer.is_last_micro_batch:
            return
        hold("backward", step)
        if worker == os.environ.get("EVERSTEP_WORKER") and (step + 1) % int(every) == 0 and step not in raised:
            raised.add(step)
            raise Trouble("in backward")

    def at_the_end(parameter: Tensor) -> None:
        if trainer.is_last_micro_batch:
            emit("backward.ended", step=trainer.num_steps)  # all that is to be summed is on its way

    model.in_forward, model.in_backward = in_forward, in_backward
    model.stem[0].weight.register_post_accumulate_grad_hook(at_the_end)


def main() -> None:
    args = arguments()
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(message)s")
    hold_in_regroupings()
    model, forward = build(args)
    trainer = everstep.ElasticTrainer(model, micro_batches=args.micro_batches, reduce=args.reduce, seed=7)
    trainer.register("ballast", Ballast(int(os.environ.get("BALLAST_MB", "0")), args.device))
    scaler = torch.amp.GradScaler(args.device, init_scale=1024.0, enabled=args.autocast == "float16")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=5, gamma=0.5)
    optimizer, scheduler, scaler = trainer.prepare(optimizer, scheduler, scaler)
    optimizer.register_step_pre_hook(lambda *_: hold("update", trainer.num_steps))
    if not (args.compile or args.checkpointing == "all"):
        watch(model, trainer)
    pause_s, is_sampled = float(os.environ.get("MICRO_BATCH_S", "0")), "SAMPLES" in os.environ
    batches, profiled = Batches(args), Trace(args.profile, first=10, last=19)
    autocast = torch.autocast(args.device, getattr(torch, args.autocast)) if args.autocast else nullcontext()

    for micro_batch in gated(trainer.micro_batches(steps=args.steps)):
        profiled.reach(micro_batch.step)
        with suppress(Trouble), profiled.body(), trainer.step(weight=batches.weight(micro_batch.index)):
            images, labels = batches.of(micro_batch.step, micro_batch.index)
            optimizer.zero_grad()
            with autocast:
                loss = nn.functional.cross_entropy(forward(images), labels)
            time.sleep(pause_s)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
        if trainer.num_steps > micro_batch.step and not args.profile:
            trace(trainer, model, optimizer)
            if is_sampled:
                sample(trainer.num_steps)

    if is_sampled:
        settle(trainer.num_steps)
    tell(model, optimizer, trainer)


if __name__ == "__main__":
    main()
