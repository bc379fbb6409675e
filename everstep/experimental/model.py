"""Models and their versions, with the methods of Determined's client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from everstep import wire
from everstep.experimental.checkpoint import CheckpointPath, get_checkpoint
from everstep.experimental.enums import OrderBy
from everstep.experimental.shown_tables import Facts, ShownList, ShownObject, named, time_of
from everstep.jobs import models
from everstep.jobs.coordinator_link import CoordinatorLink


class ClientModelVersion(ShownObject):
    def __init__(self, link: CoordinatorLink, view: wire.ModelVersionView) -> None:
        self._link, self.view = link, view

    def __repr__(self) -> str:
        return (
            f"ModelVersion(model={self.model_name!r}, version={self.model_version}, checkpoint={self.checkpoint_uuid})"
        )

    def facts(self) -> Facts:
        saved = self.view.checkpoint
        return [
            ("model", self.model_name),
            ("version", self.model_version),
            ("name", self.name),
            ("checkpoint", saved.uuid),
            ("state", saved.state),
            ("step", saved.step),
            ("metrics", named(dict(saved.metrics))),
            ("labels", ", ".join(self.view.labels)),
            ("registered", time_of(self.view.created_at)),
        ]

    @property
    def model_id(self) -> int:
        return self.view.model

    @property
    def model_name(self) -> str:
        return self.view.model_name

    @property
    def model_version(self) -> int:
        """Its number, from 1."""
        return self.view.version

    @property
    def checkpoint_uuid(self) -> str:
        return self.view.checkpoint.uuid

    @property
    def checkpoint(self) -> CheckpointPath:
        """Fetched with its code; NoCheckpoint if this machine cannot read it."""
        return get_checkpoint(self.checkpoint_uuid)

    @property
    def name(self) -> str:
        return self.view.name

    @property
    def comment(self) -> str:
        return self.view.comment

    @property
    def notes(self) -> str:
        return self.view.notes

    @property
    def labels(self) -> list[str]:
        return list(self.view.labels)

    @property
    def metadata(self) -> dict[str, Any]:
        return dict(self.view.metadata)

    def reload(self) -> None:
        self.view = self._link(lambda coordinator: coordinator.model_version(str(self.model_id), self.model_version))

    def set_name(self, name: str) -> None:
        self._change(wire.VersionChange(name=name))

    def set_comment(self, comment: str) -> None:
        self._change(wire.VersionChange(comment=comment))

    def set_notes(self, notes: str) -> None:
        self._change(wire.VersionChange(notes=notes))

    def set_labels(self, labels: Iterable[str]) -> None:
        self._change(wire.VersionChange(labels=list(labels)))

    def add_metadata(self, metadata: Mapping[str, Any]) -> None:
        self._change(wire.VersionChange(set_metadata=dict(metadata)))

    def remove_metadata(self, keys: Iterable[str]) -> None:
        self._change(wire.VersionChange(remove_metadata=list(keys)))

    def _change(self, message: wire.VersionChange) -> None:
        number = self.model_version
        self.view = self._link(lambda coordinator: coordinator.change_version(str(self.model_id), number, message))

    def delete(self) -> None:
        """From then on, the checkpoint is kept only as long as its experiment or job says."""
        self._link(lambda coordinator: coordinator.delete_version(str(self.model_id), self.model_version))


class ClientModel(ShownObject):
    def __init__(self, link: CoordinatorLink, view: wire.ModelView) -> None:
        self._link, self.view = link, view

    def __repr__(self) -> str:
        return f"Model(id={self.model_id}, name={self.name!r}, versions={self.view.num_versions})"

    def facts(self) -> Facts:
        return [
            ("id", self.model_id),
            ("name", self.name),
            ("versions", self.view.num_versions),
            ("description", self.description),
            ("labels", ", ".join(self.labels)),
            ("metadata", named(self.metadata)),
            ("owner", self.username),
            ("archived", "yes" if self.archived else "no"),
            ("created", time_of(self.creation_time)),
            ("changed", time_of(self.last_updated_time)),
        ]

    @property
    def model_id(self) -> int:
        return self.view.model

    @property
    def name(self) -> str:
        return self.view.name

    @property
    def description(self) -> str:
        return self.view.description

    @property
    def notes(self) -> str:
        return self.view.notes

    @property
    def labels(self) -> list[str]:
        return list(self.view.labels)

    @property
    def metadata(self) -> dict[str, Any]:
        return dict(self.view.metadata)

    @property
    def username(self) -> str:
        """The person who created it; empty if the token has no name."""
        return self.view.owner

    @property
    def archived(self) -> bool:
        return self.view.is_archived

    @property
    def creation_time(self) -> float:
        return self.view.created_at

    @property
    def last_updated_time(self) -> float:
        return self.view.changed_at

    def reload(self) -> None:
        self.view = self._link(lambda coordinator: coordinator.model(str(self.model_id)))

    # --- its versions ---

    def register_version(self, checkpoint_uuid: str) -> ClientModelVersion:
        """Register a checkpoint as the next version. It is kept from then on."""
        version = models.register(self._link, str(self.model_id), str(_uuid(checkpoint_uuid)))
        return ClientModelVersion(self._link, version)

    def get_version(self, version: int = models.NEWEST) -> ClientModelVersion | None:
        """By its number; -1: the newest. None: there is no version yet."""
        found = models.find_version(self._link, str(self.model_id), version)
        return None if found is None else ClientModelVersion(self._link, found)

    def list_versions(self, order_by: OrderBy = OrderBy.DESCENDING) -> ShownList[ClientModelVersion]:
        """By number, newest first."""
        found = models.all_versions(self._link, str(self.model_id), is_descending=order_by.is_descending)
        return ShownList(ClientModelVersion(self._link, each) for each in found)

    get_versions = list_versions

    # --- what people write on it ---

    def set_name(self, name: str) -> None:
        self._change(wire.ModelChange(name=name))

    def set_description(self, description: str) -> None:
        self._change(wire.ModelChange(description=description))

    def set_notes(self, notes: str) -> None:
        self._change(wire.ModelChange(notes=notes))

    def set_labels(self, labels: Iterable[str]) -> None:
        self._change(wire.ModelChange(labels=list(labels)))

    def add_metadata(self, metadata: Mapping[str, Any]) -> None:
        self._change(wire.ModelChange(set_metadata=dict(metadata)))

    def remove_metadata(self, keys: Iterable[str]) -> None:
        self._change(wire.ModelChange(remove_metadata=list(keys)))

    def archive(self) -> None:
        self._change(wire.ModelChange(is_archived=True))

    def unarchive(self) -> None:
        self._change(wire.ModelChange(is_archived=False))

    def _change(self, message: wire.ModelChange) -> None:
        self.view = models.change_model(self._link, str(self.model_id), message)

    def delete(self) -> None:
        """With its versions. From then on, their checkpoints are kept only as long as their experiments or jobs say."""
        self._link(lambda coordinator: coordinator.delete_model(str(self.model_id)))


def _uuid(checkpoint: str) -> str:
    """Of a checkpoint, or the text itself."""
    return checkpoint.uuid if isinstance(checkpoint, CheckpointPath) else checkpoint
