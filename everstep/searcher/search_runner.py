"""Runs a search method until its experiment is over: on this machine, or inside a trial of another experiment.

    LocalSearchRunner(MyMethod(), Path("my_search")).run("experiment.yaml", "model_folder")

If a runner dies, start it again with the same command. It finds its experiment and continues from the coordinator's
state, so nothing is created or decided twice. While the coordinator does not answer, a runner keeps asking."""

from __future__ import annotations

import fcntl
import math
import os
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from everstep import env
from everstep.client.calls import Coordinator
from everstep.errors import UsageError
from everstep.experimental.session import CURRENT
from everstep.jobs import new_experiments
from everstep.search.config import CUSTOM
from everstep.searcher.program import Program
from everstep.searcher.search_loop import search
from everstep.searcher.search_method import SearchMethod
from everstep.storage import private_file

T = TypeVar("T")

EXPERIMENT_FILE = "experiment_id.txt"
REQUEST_FILE = "request"


class SearchRunner:
    def __init__(self, search_method: SearchMethod) -> None:
        self.search_method = search_method

    def _search(self, experiment: int, folder: Path) -> int:
        search(_call, Program(self.search_method, experiment), folder / f"exp_{experiment}")
        return experiment


class LocalSearchRunner(SearchRunner):
    """Runs the search in this process. `searcher_dir` keeps the experiment's ID and a copy of the method's state;
    default: the current folder."""

    def __init__(self, search_method: SearchMethod, searcher_dir: str | os.PathLike[str] | None = None) -> None:
        super().__init__(search_method)
        self.searcher_dir = Path(searcher_dir) if searcher_dir is not None else Path.cwd()
        self.searcher_dir.mkdir(parents=True, exist_ok=True)

    def run(
        self,
        exp_config: str | os.PathLike[str] | Mapping[str, Any],
        model_dir: str | os.PathLike[str] | None = None,
        includes: Iterable[str | os.PathLike[str]] = (),
    ) -> int:
        """Run the search and return the experiment's ID once it is over. Without `model_dir`, the current folder is
        packed."""
        with _alone_in(self.searcher_dir):
            known = self.searcher_dir / EXPERIMENT_FILE
            if known.exists():
                return self._search(int(known.read_text()), self.searcher_dir)
            # Written first: if we die before the reply, the next runner repeats the same request.
            request = _kept(self.searcher_dir / REQUEST_FILE, uuid.uuid4().hex)
            experiment = _create(exp_config, model_dir or Path.cwd(), includes, request)
            return self._search(int(_kept(known, str(experiment))), self.searcher_dir)


class RemoteSearchRunner(SearchRunner):
    """For a script that is itself a trial; it uses the trial's coordinator and token. If the trial is started again, on
    any machine, it continues the same search. `context` is accepted, and has no effect."""

    def __init__(self, search_method: SearchMethod, context: object = None) -> None:
        super().__init__(search_method)
        self.context = context

    def run(
        self,
        exp_config: str | os.PathLike[str] | Mapping[str, Any],
        model_dir: str | os.PathLike[str] | None = None,
        includes: Iterable[str | os.PathLike[str]] = (),
    ) -> int:
        if env.coordinator_url() is None:
            raise UsageError(
                "RemoteSearchRunner only works inside a trial, but the environment names no coordinator",
                hint="use LocalSearchRunner, or create an experiment whose entrypoint is this script",
                code="searcher-not-in-trial",
            )
        experiment = _create(exp_config, model_dir or Path.cwd(), includes, f"search-of-{env.job()}")
        with tempfile.TemporaryDirectory(prefix="everstep-search-") as folder:
            return self._search(experiment, Path(folder))


def _call(call: Callable[[Coordinator], T]) -> T:
    return CURRENT.link(call, patience_s=math.inf)


def _create(
    config: str | os.PathLike[str] | Mapping[str, Any],
    model_dir: str | os.PathLike[str],
    includes: Iterable[str | os.PathLike[str]],
    request: str,
) -> int:
    is_content = isinstance(config, Mapping)
    prepared = new_experiments.prepare(
        None if isinstance(config, Mapping) else Path(config),
        Path(model_dir),
        content=config if is_content else None,  # type: ignore[arg-type]
        includes=[Path(each) for each in includes],
    )
    if (name := prepared.spec.searcher.get("name")) != CUSTOM:
        raise UsageError(
            f"searcher.name: {name} cannot run your search method",
            hint="use searcher.name: custom",
            code="search-not-custom",
        )
    prepared = replace(prepared, spec=replace(prepared.spec, request=request))
    return new_experiments.create(CURRENT.link, prepared).experiment


def _kept(path: Path, text: str) -> str:
    """The content of the file, which is created with this text if it does not exist."""
    if not path.exists():
        private_file.write(path, text.encode())
    return path.read_text()


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(
                f"another search program is using {folder}", hint="wait until it ends, or use another folder",
                code="searcher-dir-busy",
            ) from None  # fmt: skip
        yield
