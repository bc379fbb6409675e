"""Templates: pieces of configuration by name, for the files of several experiments.

The coordinator only keeps them; who creates an experiment puts its template below its file."""

from __future__ import annotations

import time

from sqlalchemy import Connection

from everstep import wire
from everstep.coordinator.experiments.owners import check_owner
from everstep.coordinator.store.store import Store
from everstep.coordinator.store.store_reader import StoreReader
from everstep.coordinator.store.template_rows import drop_template, read_template, read_templates, write_template
from everstep.errors import CONFLICT, UNKNOWN, Refused
from everstep.wire.tokens import Token


class Templates:
    def __init__(self, store: Store, reader: StoreReader) -> None:
        self._store, self._reader = store, reader

    async def find(self, start: int, limit: int) -> wire.TemplateList:
        found, num_found = await self._reader.read(lambda connection: read_templates(connection, start, limit))
        return wire.TemplateList(templates=found, num_found=num_found)

    async def view(self, name: str) -> wire.TemplateView:
        return _there(await self._reader.read(lambda connection: read_template(connection, name)), name)

    async def set(self, name: str, text: wire.TemplateText, caller: Token) -> wire.TemplateView:
        if not name.strip() or not name.isprintable():
            raise Refused("a template's name has visible characters", status=422, code="template-name-invalid")

        def write(connection: Connection) -> wire.TemplateView:
            known, now = read_template(connection, name), time.time()
            if known is not None:
                _check_owner(known, caller)
                if text.is_new and (known.config, known.written) != (text.config, text.written):
                    told = f"there is a template {name!r} already; everstep template set replaces it"
                    raise Refused(told, status=CONFLICT, code="template-exists")
            template = wire.TemplateView(
                name=name,
                config=text.config,
                written=text.written,
                owner=caller.person if known is None else known.owner,
                created_at=now if known is None else known.created_at,
                changed_at=now,
            )
            write_template(connection, template)
            return template

        return await self._store.write(write)

    async def delete(self, name: str, caller: Token) -> None:
        def write(connection: Connection) -> None:
            _check_owner(_there(read_template(connection, name), name), caller)
            drop_template(connection, name)

        await self._store.write(write)


def _check_owner(template: wire.TemplateView, caller: Token) -> None:
    check_owner(f"template {template.name}", template.owner, caller, code="template-of-another")


def _there(template: wire.TemplateView | None, name: str) -> wire.TemplateView:
    if template is None:
        text = f"there is no template {name[:64]!r}; everstep template list shows all"
        raise Refused(text, status=UNKNOWN, code="template-unknown")
    return template
