"""`everstep checkpoint …`; what its commands do is imported when one is called."""

from __future__ import annotations

import typer

from everstep.cli import options as opt

checkpoint = typer.Typer(
    name="checkpoint", no_args_is_help=True, help="Look at checkpoints, check them, export one, delete old ones."
)


@checkpoint.command("list")
def checkpoint_list(uri: opt.CheckpointUri, json: opt.IsJson = False) -> None:
    """List the checkpoints of a directory or bucket, oldest first, with what is wrong with them."""
    from everstep.cli.checkpoint import list_checkpoints

    raise typer.Exit(list_checkpoints(uri, is_json=json))


@checkpoint.command("show")
def checkpoint_show(uri: opt.CheckpointUri, step: opt.WhichStep = "latest", json: opt.IsJson = False) -> None:
    """Show one checkpoint: its manifest, its files, its tensors."""
    from everstep.cli.checkpoint import show_checkpoint

    raise typer.Exit(show_checkpoint(uri, step, is_json=json))


@checkpoint.command("verify")
def checkpoint_verify(uri: opt.CheckpointUri, step: opt.OptionalStep = None, json: opt.IsJson = False) -> None:
    """Read every byte and compare the checksums. Exit code 1 if one is broken."""
    from everstep.cli.checkpoint import verify_checkpoints

    raise typer.Exit(verify_checkpoints(uri, step, is_json=json))


@checkpoint.command("export")
def checkpoint_export(
    uri: opt.CheckpointUri, target: opt.ExportTarget, step: opt.WhichStep = "latest", only: opt.OnlyPrefix = ""
) -> None:
    """Write one checkpoint as a single .safetensors or .pt file."""
    from everstep.cli.checkpoint import export_checkpoint

    raise typer.Exit(export_checkpoint(uri, target, step, only))


@checkpoint.command("prune")
def checkpoint_prune(
    uri: opt.CheckpointUri,
    keep_latest: opt.KeepLatest = None,
    keep_best: opt.KeepBest = None,
    metric: opt.Metric = None,
    mode: opt.Mode = None,
    dry_run: opt.IsDryRun = False,
    json: opt.IsJson = False,
) -> None:
    """Delete what is not kept. Without options: by the rule that the newest checkpoint was saved with."""
    from everstep.cli.checkpoint import prune_checkpoints

    raise typer.Exit(
        prune_checkpoints(
            uri,
            keep_latest=keep_latest,
            keep_best=keep_best,
            metric=metric,
            mode=mode,
            is_dry=dry_run,
            is_json=json,
        )
    )
