"""The values of secrets, read on this machine from where the file says that they are. They are never shown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from everstep import env
from everstep.errors import UsageError

if TYPE_CHECKING:  # it checks job files, which most commands do not read
    from everstep.job_file.secret import Secret


def resolve(secrets: Mapping[str, Secret]) -> dict[str, str]:
    """Those whose values are available here; a platform resolves its own (kubernetes:, oci:)."""
    return {name: value for name, secret in secrets.items() if (value := _value(name, secret)) is not None}


def _value(name: str, secret: Secret) -> str | None:
    if secret.is_value:
        return secret.held
    if secret.kind == "env":
        if (value := env.everything().get(secret.held)) is None:
            message = f"secrets.{name}: the variable {secret.held} is not set"
            raise UsageError(message, hint=f"export {secret.held}=…", code="secret-variable-not-set")
        return value
    if secret.kind == "file":
        try:
            return Path(secret.held).expanduser().read_text().rstrip("\n")
        except (OSError, UnicodeDecodeError) as error:
            message = f"secrets.{name}: {secret.held}: {error}"
            raise UsageError(message, hint="a text file that you may read", code="secret-file-unreadable") from None
    return None


def private_files(secrets: Mapping[str, Secret], *, job_file: Path | None) -> tuple[Path, ...]:
    """Files that hold secrets, including a job file with a literal one. They must not travel with the code."""
    kept = [Path(secret.held).expanduser() for secret in secrets.values() if secret.kind == "file"]
    has_value = any(secret.is_value for secret in secrets.values())
    return (*kept, *([job_file] if has_value and job_file is not None else []))
