"""All access to Oracle's SDK: identity, service clients, and translation of errors.

The SDK is imported here, on first use. Its own retries repeat calls that may succeed later, and wait as long as the
service asks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal

from everstep.errors import PermanentError, TemporaryError, UsageError

Auth = Literal["api_key", "resource_principal", "security_token"]

MISSING = "Oracle's SDK is not installed here: pip install 'everstep[oci]'"
_TIMEOUTS_S = (10.0, 60.0)  # to connect, to answer
_TRIES = 8
_PATIENCE_S = 300.0
_LONGEST_PAUSE_S = 30.0


def is_installed() -> bool:
    return find_spec("oci") is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """The signer, its configuration, and the endpoint."""

    config: dict[str, Any] = field(repr=False)
    signer: Any = field(repr=False)
    endpoint: str = ""  # "": the region's

    @property
    def storage_options(self) -> dict[str, Any]:
        """Of ocifs."""
        return {"config": self.config, "signer": self.signer}

    def client(self, service: str, name: str) -> Any:
        """A client of the SDK, by its module and its class."""
        from oci.circuit_breaker import NoCircuitBreakerStrategy

        where = {"service_endpoint": self.endpoint} if self.endpoint else {}
        return getattr(import_module(f"oci.{service}"), name)(
            self.config,
            signer=self.signer,
            retry_strategy=_retries(),
            circuit_breaker_strategy=NoCircuitBreakerStrategy(),
            timeout=_TIMEOUTS_S,
            **where,
        )


def open_access(auth: Auth, profile: str, endpoint: str) -> Access:
    with told("sign requests"):
        if auth == "resource_principal":
            from oci.auth.signers import get_resource_principals_signer

            signer = get_resource_principals_signer()
            return Access(config={"region": signer.region}, signer=signer, endpoint=endpoint)
        from oci.config import from_file, validate_config
        from oci.signer import Signer

        config = from_file(profile_name=profile)
        if auth == "security_token":
            return Access(config=config, signer=_token_signer(config), endpoint=endpoint)
        validate_config(config)
        signer = Signer(
            tenancy=config["tenancy"],
            user=config["user"],
            fingerprint=config["fingerprint"],
            private_key_file_location=config.get("key_file"),
            pass_phrase=config.get("pass_phrase"),
            private_key_content=config.get("key_content"),
        )
        return Access(config=config, signer=signer, endpoint=endpoint)


def _token_signer(config: dict[str, Any]) -> Any:
    from pathlib import Path

    from oci.auth.signers import SecurityTokenSigner
    from oci.signer import load_private_key_from_file

    if not (path := config.get("security_token_file")):
        message = "the profile has no security_token_file"
        raise UsageError(message, hint="oci session authenticate --profile-name …", code="oci-token-file-missing")
    token = Path(path).expanduser().read_text().strip()
    return SecurityTokenSigner(token, load_private_key_from_file(config["key_file"], config.get("pass_phrase")))


def _retries() -> Any:
    """Not for 409: the caller knows which state it waits for, and repeats the call itself."""
    from oci.retry import ExponentialBackOffWithDecorrelatedJitterRetryStrategy
    from oci.retry.retry_checkers import (
        LimitBasedRetryChecker,
        RetryCheckerContainer,
        TimeoutConnectionAndServiceErrorRetryChecker,
        TotalTimeExceededRetryChecker,
    )

    class Heeding(ExponentialBackOffWithDecorrelatedJitterRetryStrategy):  # type: ignore[misc]
        def do_sleep(self, attempt: int, exception: Exception) -> None:
            import time

            asked_s = _retry_after_s(exception)
            if asked_s is None:
                super().do_sleep(attempt, exception)
            else:
                time.sleep(min(asked_s, _PATIENCE_S))

    checkers = RetryCheckerContainer(
        checkers=[
            LimitBasedRetryChecker(max_attempts=_TRIES),
            TotalTimeExceededRetryChecker(time_limit_seconds=_PATIENCE_S),
            TimeoutConnectionAndServiceErrorRetryChecker(service_error_retry_config={-1: [], 429: []}),
        ]
    )
    return Heeding(
        base_sleep_time_seconds=0.25,
        exponent_growth_factor=2,
        max_wait_between_calls_seconds=_LONGEST_PAUSE_S,
        checker_container=checkers,
        decorrelated_jitter=0.25,
    )


def _retry_after_s(exception: Exception) -> float | None:
    headers = getattr(exception, "headers", None) or {}
    try:
        return max(0.0, float(headers.get("retry-after", "")))
    except ValueError:
        return None


# --- errors ---------------------------------------------------------------------------------------


@contextmanager
def told(doing: str) -> Iterator[None]:
    """The SDK's errors as ours."""
    try:
        from oci import exceptions as theirs
    except ImportError:
        raise UsageError(MISSING.partition(":")[0], hint=MISSING.partition(": ")[2], code="oci-sdk-missing") from None
    try:
        yield
    except theirs.ServiceError as error:
        raise _ours(error, doing) from None
    except (theirs.ConfigFileNotFound, theirs.ProfileNotFound, theirs.InvalidConfig) as error:
        hint = "`oci setup config` writes ~/.oci/config; platform.oci.profile names one"
        raise UsageError(f"cannot {doing}: {_shown(error)}", hint=hint, code="oci-config-invalid") from None
    except (theirs.InvalidPrivateKey, theirs.MissingPrivateKeyPassphrase, theirs.InvalidKeyFilePath) as error:
        message = f"cannot {doing}: the private key: {_shown(error)}"
        raise UsageError(message, hint="key_file in ~/.oci/config", code="oci-key-invalid") from None
    except (theirs.RequestException, theirs.ConnectTimeout, ConnectionError) as error:
        raise TemporaryError(
            f"cannot {doing}: OCI does not answer: {_shown(error)}", hint="retry later", code="oci-no-answer"
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot {doing}: {_shown(error)}", hint="see auth in docs/guides/oci.md", code="oci-auth-failed"
        ) from None


def status_of(error: BaseException) -> int | None:
    """HTTP's, of an error of the service."""
    return getattr(error, "status", None)


def _ours(error: Any, doing: str) -> TemporaryError | PermanentError | UsageError:
    message = f"cannot {doing}: {error.message} ({error.status} {error.code}, request {error.request_id})"
    if error.status == 401:
        return UsageError(
            message,
            hint="the key's fingerprint, user and tenancy must be those of the profile; is the clock right?",
            code="oci-not-authenticated",
        )
    if error.status in (403, 404):
        return UsageError(
            message,
            hint="it does not exist, or no policy allows it: see docs/guides/oci.md",
            code="oci-not-found-or-denied",
        )
    if error.status == 429 or error.status >= 500 or error.status < 0:
        return TemporaryError(message, hint="retry later", code="oci-busy")
    return PermanentError(message, code="oci-refused")


def _shown(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
