"""
TensorBoard: event files in a folder, by torch's own writer; `tensorboard --logdir FOLDER` shows them.

A run is a folder. A new run does not write into one that holds curves already: it takes FOLDER-2 and so on, beside.
Each part of a training is a folder in it, which TensorBoard shows as a run of its own.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from pyro_bnn.tracking.base import Tracker, import_tool

__all__ = ["TensorBoard"]


@final
class TensorBoard(Tracker):
    """
    Write curves for TensorBoard; needs the extra `tensorboard`.

    :param folder: where to; in a run folder it is `tensorboard`.
    :param facts: see :class:`~pyro_bnn.tracking.Tracker`; a table under "Text".

    >>> import torch, tempfile
    >>> from pyro_bnn.guides import AutoMeanFieldNormal
    >>> from pyro_bnn.inference import fit
    >>> from pyro_bnn.models import BNN, MLP, likelihoods, priors
    >>> from pyro_bnn.optim import Adam
    >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
    >>> model = BNN(MLP(1, 1, [4]), priors.FanIn(), likelihoods.Gaussian(0.1), num_data=20)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     curves = TensorBoard(folder + "/curves")
    ...     result = fit(model, AutoMeanFieldNormal(model), Adam({"lr": 1e-2}), (x, x), epochs=2, callbacks=[curves])
    ...     curves.last_epoch("")
    2
    """

    def __init__(self, folder: str | Path = "runs/tensorboard", facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(facts)
        self.folder = Path(folder)
        self._tool = import_tool("torch.utils.tensorboard", "tensorboard")
        self._writers: dict[str, Any] = {}

    @classmethod
    def for_run(cls, name: str, folder: Path | None, facts: Mapping[str, Any]) -> "TensorBoard":
        """Return one that writes into `tensorboard` in the run folder, or into runs/tensorboard/NAME without one."""
        return cls(Path("runs/tensorboard", name) if folder is None else folder / "tensorboard", facts)

    def open(self, run: str) -> str:
        """Choose the folder."""
        name, count = self.folder.name, 1
        while not run:
            at = self.folder if count == 1 else self.folder.with_name(f"{name}-{count}")
            run, count = ("" if any(at.rglob("events.out.tfevents.*")) else at.name), count + 1
        if run != Path(run).name or run in (".", ".."):
            raise ValueError(f"{run!r} is no name of a folder beside {self.folder}")
        self.folder = self.folder.with_name(run)
        return run

    def write(self, part: str, epoch: int, values: Mapping[str, float]) -> None:
        """Write the numbers as scalars, and wait until they are in the file."""
        if part not in self._writers:
            writer = self._tool.SummaryWriter(str(self.folder / part))
            if epoch == 1:
                rows = [f"| {key} | {str(value).replace('|', ' ')} |" for key, value in self.facts.items()]
                writer.add_text("facts", "\n".join(["| | |", "|---|---|", *rows]), 0)
            self._writers[part] = writer
        for name, value in values.items():
            self._writers[part].add_scalar(name, value, epoch)
        self._writers[part].flush()

    def close(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def last_epoch(self, part: str) -> int:
        """Read it in the files."""
        events = import_tool("tensorboard.backend.event_processing.event_accumulator", "tensorboard")
        if not any((self.folder / part).glob("events.out.tfevents.*")):
            return 0
        held = events.EventAccumulator(str(self.folder / part), size_guidance={events.SCALARS: 1}).Reload()
        return int(held.Scalars("nll")[-1].step) if "nll" in held.Tags()["scalars"] else 0
