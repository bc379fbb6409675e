"""`everstep tensorboard 12`: TensorBoard over any set of trials and experiments, as Determined's."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from everstep import wire
from everstep.cli.experiment_follow import Interrupted, interruptible
from everstep.cli.experiment_link import ExperimentsOptions, link_of
from everstep.cli.options import command, say
from everstep.cli.printable import counted
from everstep.cli.submitted import leave
from everstep.errors import UsageError
from everstep.jobs import experiments
from everstep.jobs.coordinator_link import CoordinatorLink
from everstep.settings import setting

if TYPE_CHECKING:
    from everstep.jobs.board_folder import BoardFolder

_MOST_IN_TITLE = 5


@dataclass(frozen=True, kw_only=True)
class TensorBoardOptions(ExperimentsOptions):
    experiments: tuple[int, ...] = setting((), "Numbers of experiments", is_argument=True, metavar="[ID]...", least=1)
    trial: tuple[int, ...] = setting(
        (), "Only the trial with this number in its experiment; may be repeated", metavar="N", least=1
    )
    trial_ids: tuple[int, ...] = setting(
        (), "Also the trial with this ID, of any experiment; may be repeated", also=("-t",), metavar="ID", least=1
    )
    port: int = setting(
        0, "Port to listen on, on this machine only; 0: any free one", metavar="PORT", least=0, most=65535
    )


class _StartsByDefault(click.Group):
    """`everstep tensorboard 12` is `everstep tensorboard start 12`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        return super().resolve_command(ctx, args if args[0] in self.commands else ["start", *args])


@click.group(cls=_StartsByDefault, no_args_is_help=True, context_settings={"ignore_unknown_options": True})
def tensorboard() -> None:
    """Show experiments and trials in TensorBoard: `everstep tensorboard ID...`, or with `start` before the IDs."""


@command(TensorBoardOptions, name="start", no_args_is_help=True)
def start(options: TensorBoardOptions) -> int:
    """Show experiments and trials in TensorBoard until you press Ctrl-C; running trials are kept up to date.

    A trial's own event files are shown if they are still on this machine, beside its checkpoints. Otherwise they are
    written again from the metrics that the coordinator has."""
    from everstep.jobs.board_events import check_installed  # late: TensorBoard is slow to import
    from everstep.jobs.board_folder import BoardFolder
    from everstep.jobs.board_process import REFRESH_S
    from everstep.jobs.board_process import tensorboard as process

    _check(options)
    check_installed()
    try:
        with (
            interruptible(),
            link_of(options) as link,
            tempfile.TemporaryDirectory(prefix="everstep-tensorboard-") as scratch,
        ):
            board = BoardFolder(link, Path(scratch) / "trials")
            numbers = _refresh(board, link, options)
            folder = Path(scratch) / "tmp"
            folder.mkdir()
            with process(Path(scratch) / "trials", folder, options.port, _title(options)) as (child, url):
                say(f"{counted(len(numbers), 'trials')}, {board.num_linked} with their own files; Ctrl-C ends")
                click.echo(url)
                while (ended := child.wait(REFRESH_S)) is None:
                    _refresh(board, link, options)
                say(f"TensorBoard ended: {ended}")
                return leave(1)
    except Interrupted as interrupted:
        return leave(128 + interrupted.number)


def _check(options: TensorBoardOptions) -> None:
    if not options.experiments and not options.trial_ids:
        raise UsageError(
            "no experiment and no trial is named",
            hint="everstep tensorboard ID..., or --trial-ids ID",
            code="tensorboard-of-nothing",
        )
    if options.trial and not options.experiments:
        raise UsageError(
            "--trial is the number of a trial in its experiment, and no experiment is named",
            hint="name it: everstep tensorboard ID --trial N; for the ID of a trial: --trial-ids ID",
            code="tensorboard-trial-alone",
        )


def _refresh(board: BoardFolder, link: CoordinatorLink, options: TensorBoardOptions) -> set[int]:
    """The IDs of the trials that are shown."""
    found: dict[int, wire.TrialView] = {}
    for number in dict.fromkeys(options.experiments):
        of_it = experiments.all_trials(link, number)
        _check_numbers(number, options.trial, of_it)
        found |= {each.trial_id: each for each in of_it if not options.trial or each.trial in options.trial}
    for trial_id in options.trial_ids:
        found[trial_id] = link(lambda it, trial_id=trial_id: it.find_trial(trial_id))  # type: ignore[misc]
    numbers = dict.fromkeys(each.experiment for each in found.values())
    saved = [each for number in numbers for each in experiments.all_checkpoints(link, number)]
    board.refresh(found.values(), saved)
    return set(found)


def _check_numbers(experiment: int, numbers: Sequence[int], trials: Sequence[wire.TrialView]) -> None:
    missing = set(numbers) - {each.trial for each in trials}
    if missing:
        raise UsageError(
            f"experiment {experiment} has no trial {min(missing)}; it has {counted(len(trials), 'trials')}",
            hint=f"everstep e list-trials {experiment}",
            code="tensorboard-trial-unknown",
        )


def _title(options: TensorBoardOptions) -> str:
    numbers = [*map(str, options.experiments)] or [f"trial {each}" for each in options.trial_ids]
    more = "…" if len(numbers) > _MOST_IN_TITLE else ""
    return f"everstep {', '.join(numbers[:_MOST_IN_TITLE])}{more}"


tensorboard.add_command(start)
COMMANDS = {"tensorboard": tensorboard}
