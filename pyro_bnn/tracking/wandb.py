"""
Weights & Biases: curves over epochs in a run of a project.

Its own settings apply: WANDB_MODE=offline keeps everything in the folder `wandb` until `wandb sync`. The name of a run
is chosen by it and taken up again by a resumed training. A run that is kept offline cannot be asked what it holds, so
how far it was written is noted in a small file beside it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from pyro_bnn.common.files import write_text
from pyro_bnn.common.reading import read_json
from pyro_bnn.tracking.base import Tracker, import_tool

__all__ = ["WandB"]


@final
class WandB(Tracker):
    """
    Write curves for Weights & Biases, with `epoch` as their axis; needs the extra `wandb`.

    :param project: its name.
    :param name: of the run.
    :param folder: where its files go; default the working directory.
    :param facts: see :class:`~pyro_bnn.tracking.Tracker`; the configuration of the run.
    :param options: of `wandb.init`, such as `mode="offline"`.
    """

    def __init__(
        self,
        project: str = "pyro-bnn",
        *,
        name: str | None = None,
        folder: str | Path = ".",
        facts: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(facts)
        self.project, self.name, self.folder, self.options = project, name, Path(folder), options
        self._tool = import_tool("wandb", "wandb")
        self._open: Any = None
        self._defined: set[str] = set()

    @classmethod
    def for_run(cls, name: str, folder: Path | None, facts: Mapping[str, Any]) -> "WandB":
        """Return one of the project pyro-bnn, with its files in the run folder."""
        return cls(name=name, folder="." if folder is None else folder, facts=facts)

    def open(self, run: str) -> str:
        """Begin a run, or go on with one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        goes_on = {"id": run, "resume": "allow"} if run else {}
        settings = self._tool.Settings(console="off")
        given = {"settings": settings, **goes_on, **self.options}
        self._open = self._tool.init(
            project=self.project, name=self.name, dir=str(self.folder), config=self.facts, **given
        )
        return str(self._open.id)

    def write(self, part: str, epoch: int, values: Mapping[str, float]) -> None:
        """Write the numbers beside their epoch, and note how far that is."""
        prefix = f"{part}/" if part else ""
        if part not in self._defined:
            self._open.define_metric(f"{prefix}*", step_metric=f"{prefix}epoch")
            self._defined.add(part)
        self._open.log({f"{prefix}epoch": epoch, **{prefix + name: value for name, value in values.items()}})
        write_text(self._note, json.dumps({**self._noted(), part: epoch}), sync=False)

    def close(self) -> None:
        """Finish the run."""
        self._open.finish()
        self._defined.clear()

    def last_epoch(self, part: str) -> int | None:
        """Read the note; without one, ask what the run holds."""
        noted = self._noted().get(part)
        return self._open.summary.get(f"{part}/epoch" if part else "epoch") if noted is None else noted

    @property
    def _note(self) -> Path:
        return self.folder / "wandb" / f"written-{self.run}.json"

    def _noted(self) -> dict[str, int]:
        return read_json(self._note, dict) if self._note.is_file() else {}
