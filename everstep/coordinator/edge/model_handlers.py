"""What answers the operations about models, checkpoints that people change, and templates: see `handlers`."""

from __future__ import annotations

from everstep import wire
from everstep.coordinator.edge.guard import TOKEN
from everstep.coordinator.edge.handlers import HttpCall


async def create_model(call: HttpCall, new: wire.NewModel) -> wire.ModelView:
    return await call.service.models.create(new, call.scope[TOKEN])


async def models(
    call: HttpCall,
    start: int = 0,
    limit: int = 100,
    search: str = "",
    label: str = "",
    sort: str = "model",
    *,
    is_descending: bool = False,
    is_archived: bool = False,
) -> wire.ModelList:
    return await call.service.models.find(
        start, limit, search=search, label=label, sort=sort, is_descending=is_descending, is_archived=is_archived
    )


async def model_labels(call: HttpCall) -> wire.ModelLabels:
    return await call.service.models.labels()


async def model(call: HttpCall, model: str) -> wire.ModelView:
    return await call.service.models.view(model)


async def change_model(call: HttpCall, model: str, message: wire.ModelChange) -> wire.ModelView:
    return await call.service.models.change(model, message, call.scope[TOKEN])


async def delete_model(call: HttpCall, model: str) -> None:
    await call.service.models.delete(model, call.scope[TOKEN])


async def register_version(call: HttpCall, model: str, new: wire.NewVersion) -> wire.ModelVersionView:
    return await call.service.models.register(model, new, call.scope[TOKEN])


async def model_versions(
    call: HttpCall, model: str, *, start: int = 0, limit: int = 100, is_descending: bool = False
) -> wire.ModelVersionList:
    return await call.service.models.versions(model, start, limit, is_descending=is_descending)


async def model_version(call: HttpCall, model: str, version: int) -> wire.ModelVersionView:
    return await call.service.models.version(model, version)


async def change_version(
    call: HttpCall, model: str, version: int, message: wire.VersionChange
) -> wire.ModelVersionView:
    return await call.service.models.change_version(model, version, message, call.scope[TOKEN])


async def delete_version(call: HttpCall, model: str, version: int) -> None:
    await call.service.models.delete_version(model, version, call.scope[TOKEN])


async def checkpoint_files(call: HttpCall, uuid: str) -> wire.CheckpointFiles:
    return await call.service.checkpoint_changes.files(uuid)


async def change_checkpoint(call: HttpCall, uuid: str, message: wire.CheckpointChange) -> wire.SavedCheckpoint:
    return await call.service.checkpoint_changes.change(uuid, message, call.scope[TOKEN])


async def remove_files(call: HttpCall, uuid: str, message: wire.CheckpointRemoval) -> wire.SavedCheckpoint:
    return await call.service.checkpoint_changes.remove(uuid, message, call.scope[TOKEN])


async def set_template(call: HttpCall, template: str, text: wire.TemplateText) -> wire.TemplateView:
    return await call.service.templates.set(template, text, call.scope[TOKEN])


async def templates(call: HttpCall, start: int = 0, limit: int = 100) -> wire.TemplateList:
    return await call.service.templates.find(start, limit)


async def template(call: HttpCall, template: str) -> wire.TemplateView:
    return await call.service.templates.view(template)


async def delete_template(call: HttpCall, template: str) -> None:
    await call.service.templates.delete(template, call.scope[TOKEN])
