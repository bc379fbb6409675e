"""`everstep checkpoint`, `model`, `template` and `trial`: groups of verbs, with Determined's names."""

from __future__ import annotations

import click

from everstep.cli.lazy_group import LazyGroup

# For each verb: its module, and one line for --help.
_CHECKPOINT = {
    "list": ("checkpoint", "List the checkpoints of a folder or bucket."),
    "show": ("checkpoint", "Show one of them: its manifest, its files, its tensors."),
    "verify": ("checkpoint", "Read every byte and compare the checksums."),
    "export": ("checkpoint", "Write one as a single file: .safetensors or .pt."),
    "prune": ("checkpoint", "Delete those that the retention rule does not keep."),
    "describe": ("checkpoint_record", "Show what the coordinator knows about a checkpoint."),
    "download": ("checkpoint_record", "Download a checkpoint with its code."),
    "delete": ("checkpoint_record", "Delete checkpoints where they were saved."),
    "rm": ("checkpoint_record", "Remove files of checkpoints by pattern."),
    "metadata": ("checkpoint_record", "Add or remove metadata of a checkpoint."),
}
_MODEL = {
    "create": ("model", "Create a model."),
    "list": ("model", "List models."),
    "describe": ("model", "Show a model and its versions."),
    "list-versions": ("model_version", "List the versions of a model."),
    "register-version": ("model_version", "Register a checkpoint as the next version; it is kept from then on."),
    "describe-version": ("model_version", "Show a version of a model."),
    "delete-version": ("model_version", "Delete a version of a model."),
    "archive": ("model", "Hide a model from the list."),
    "unarchive": ("model", "Show an archived model again."),
    "label": ("model", "Add or remove a label."),
    "metadata": ("model", "Add or remove metadata."),
    "set": ("model", "Set the name, description or notes."),
    "delete": ("model", "Delete a model with its versions."),
}
_TEMPLATE = {
    "create": ("template", "Create a template from a file."),
    "set": ("template", "Create or replace a template."),
    "list": ("template", "List templates."),
    "describe": ("template", "Show a template and who wrote it."),
    "config": ("template", "Print the file of a template."),
    "remove": ("template", "Remove a template."),
}
_TRIAL = {
    "describe": ("trial", "Show a trial, and its metrics."),
    "logs": ("trial", "Print the output of a trial."),
    "download": ("trial", "Download a checkpoint of a trial."),
    "kill": ("trial", "End a trial at once; its search continues."),
}


@click.group(cls=LazyGroup, table=_CHECKPOINT, no_args_is_help=True)
def checkpoint() -> None:
    """Look at checkpoints, by the folder or bucket (URI) that they are in or by UUID, and delete them."""


@click.group(cls=LazyGroup, table=_MODEL, no_args_is_help=True)
def model() -> None:
    """Register checkpoints as versions of models. A registered checkpoint is kept."""


@click.group(cls=LazyGroup, table=_TEMPLATE, no_args_is_help=True)
def template() -> None:
    """Keep pieces of configuration at the coordinator, for `everstep e create --template NAME`."""


@click.group(cls=LazyGroup, table=_TRIAL, no_args_is_help=True)
def trial() -> None:
    """Look at one trial, by its ID: `everstep e list-trials` shows it."""


COMMANDS = {
    "checkpoint": checkpoint,
    "model": model,
    "template": template,
    "trial": trial,
    "c": checkpoint,
    "m": model,
    "tpl": template,
    "t": trial,
}
