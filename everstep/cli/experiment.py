"""`everstep experiment …`, or `everstep e …` for short: the verbs of experiments, with Determined's names."""

from __future__ import annotations

import click

from everstep.cli.lazy_group import LazyGroup

_COMMANDS = {  # name: (module, one line for --help; "" hides it)
    "create": ("experiment_create", "Create an experiment; on this machine, show it until it ends."),
    "preview": ("experiment_preview", "Show how many trials would train to each length, and the cost."),
    "list": ("experiment_show", "List experiments."),
    "describe": ("experiment_describe", "Show an experiment: its state, best result and trials."),
    "config": ("experiment_show", "Print the file that an experiment was created with."),
    "logs": ("experiment_logs", "Print the output of a trial."),
    "list-trials": ("experiment_show", "List the trials of an experiment (short: lt)."),
    "list-checkpoints": ("experiment_show", "List the checkpoints of an experiment (short: lc)."),
    "export": ("experiment_export", "Export trials, metrics and checkpoints: CSV, JSON lines, or MLflow."),
    "download": ("experiment_files", "Download the best checkpoints of an experiment."),
    "download-model-def": ("experiment_files", "Download the code of an experiment."),
    "pause": ("experiment_verbs", "Pause an experiment: its trials save and free their slots."),
    "activate": ("experiment_verbs", "Continue a paused experiment."),
    "cancel": ("experiment_verbs", "End an experiment; its trials save first."),
    "kill": ("experiment_verbs", "End an experiment at once."),
    "continue": ("experiment_create", "Create an experiment that starts from another one's best weights."),
    "fork": ("experiment_create", "Create an experiment with the file and code of another one."),
    "archive": ("experiment_verbs", "Hide an experiment from the list once it is over."),
    "unarchive": ("experiment_verbs", "Show an archived experiment again."),
    "delete": ("experiment_verbs", "Delete an experiment and its checkpoints."),
    "wait": ("experiment_verbs", "Wait until an experiment is over."),
    "verify": ("experiment_verify", "Train a trial again, and compare its weights bit for bit."),
    "label": ("experiment_verbs", "Add or remove a label."),
    "set": ("experiment_verbs", "Set the name, notes, checkpoints to keep, share of the pool, or time limit."),
    "lt": ("experiment_show", ""),
    "lc": ("experiment_show", ""),
    "unpause": ("experiment_verbs", ""),
}


@click.group(cls=LazyGroup, table=_COMMANDS, no_args_is_help=True)
def experiment() -> None:
    """Run experiments: many trials from one file, to find the best hyperparameters."""


COMMANDS = {"experiment": experiment, "e": experiment}
