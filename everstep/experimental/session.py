"""The coordinator that the client uses: from `login`, from the environment, or this machine's."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from everstep import env
from everstep.experimental.shown_tables import Facts, ShownObject
from everstep.jobs.coordinator_link import CoordinatorLink
from everstep.jobs.tokens import find_token
from everstep.wire.tokens import parse_tokens

log = logging.getLogger("everstep")


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientUser(ShownObject):
    username: str  # empty: a token without a name
    is_admin: bool

    def facts(self) -> Facts:
        return [("user", self.username), ("administrator", "yes" if self.is_admin else "no")]


class ClientSession:
    """One for each process; `link` is made when it is first used."""

    def __init__(self) -> None:
        self._url: str | None = None
        self._token_file: Path | None = None
        self._link: CoordinatorLink | None = None

    def login(self, url: str | None, token_file: Path | None) -> None:
        self.logout()
        self._url, self._token_file = url, token_file

    def logout(self) -> None:
        if self._link is not None:
            self._link.close()
        self._url = self._token_file = self._link = None

    @property
    def url(self) -> str | None:
        """None: this machine's."""
        found = self._url or env.coordinator_url() or env.value(env.DET_MASTER)
        return found if found is None or "://" in found else f"http://{found}"

    @property
    def has_coordinator(self) -> bool:
        """Whether one was named, or this machine's has ever been used."""
        return self.url is not None or (env.home() / "local").exists()

    @property
    def link(self) -> CoordinatorLink:
        if self._link is None:
            self._link = CoordinatorLink(self._find, is_local=self.url is None, claim=self._claim)
        return self._link

    def user(self) -> ClientUser:
        self.link(lambda coordinator: coordinator.check())
        tokens = parse_tokens(self._find()[1])
        names = [each.person for each in tokens if each.person]
        is_admin = any(each.is_administrator for each in tokens)
        return ClientUser(username=names[0] if names else "", is_admin=is_admin)

    def _claim(self) -> None:
        if self.url is None:
            from everstep.pool.local_service import claim_local

            claim_local(log.info)

    def _find(self) -> tuple[str, str]:
        if (url := self.url) is not None:
            return url, find_token(self._token_file)
        from everstep.pool.local_service import connect_local

        local, token_file = connect_local(log.info)
        return local, env.read_token(token_file)


CURRENT = ClientSession()
