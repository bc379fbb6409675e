"""The values of a job's secrets on the submitting machine. They go only to private files and the platform's secrets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from everstep import env
from everstep.errors import UsageError
from everstep.job_file.secret import Secret


def resolve(secrets: Mapping[str, Secret]) -> dict[str, str]:
    """Those whose values are available here; a platform resolves its own (kubernetes:, oci:)."""
    return {name: value for name, secret in secrets.items() if (value := _value(name, secret)) is not None}


def _value(name: str, secret: Secret) -> str | None:
    if secret.is_value:
        return secret.held
    if secret.kind == "env":
        if (value := env.everything().get(secret.held)) is None:
            raise UsageError(
                f"secrets.{name}: the variable {secret.held} is not set",
                hint=f"export {secret.held}=…",
                code="secret-variable-not-set",
            )
        return value
    if secret.kind == "file":
        try:
            return Path(secret.held).expanduser().read_text().rstrip("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"secrets.{name}: {secret.held}: {error}",
                hint="a text file that you may read",
                code="secret-file-unreadable",
            ) from None
    return None


def private_files(secrets: Mapping[str, Secret], *, job_file: Path | None) -> tuple[Path, ...]:
    """Files that hold secrets, including a job file with a literal one. They must not travel with the code."""
    kept = [Path(secret.held).expanduser() for secret in secrets.values() if secret.kind == "file"]
    has_value = any(secret.is_value for secret in secrets.values())
    return (*kept, *([job_file] if has_value and job_file is not None else []))


def refuse_foreign(secrets: Mapping[str, Secret], *, platform: str, kinds: tuple[str, ...] = ()) -> None:
    """`kinds`: those that this platform resolves, besides values, env and file."""
    for name, secret in secrets.items():
        if secret.kind not in ("value", "env", "file", *kinds):
            raise UsageError(
                f"secrets.{name}: {secret.kind}: is not supported on {platform}",
                hint="use env:NAME or file:PATH",
                code="secret-kind-unsupported",
            )
