"""The tokens of trials: each opens one trial's job, and what that trial itself has created.

Nothing is kept for a token but the store's secret: the token of a trial is the same after a restart of the coordinator,
and another store's are worth nothing here. Whether the trial is over is the caller's question. Pure."""

from __future__ import annotations

import base64
import hmac

from everstep.wire.tokens import WORKER, Token

_BEGIN = "trial."


class TrialTokens:
    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def of(self, job: str) -> Token:
        """For the workers of this trial."""
        digest = hmac.digest(self._secret, job.encode(), "sha256")
        proof = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        return Token(role=WORKER, word=f"{_BEGIN}{job}.{proof}", trial=job)

    def find(self, word: str) -> Token | None:
        """Takes a time that does not depend on how much of it is right."""
        if not word.startswith(_BEGIN):
            return None
        job = word.removeprefix(_BEGIN).rpartition(".")[0]
        token = self.of(job)
        return token if hmac.compare_digest(token.word.encode(), word.encode()) else None
