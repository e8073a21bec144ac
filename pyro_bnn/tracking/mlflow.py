"""
MLflow: metrics and parameters of a run of an experiment, where the tracking address leads.

That is MLFLOW_TRACKING_URI or what is handed in; a file of SQLite or a server. The client's own functions are used, not
the process-wide active run, so that a run of yours around the training stays yours.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from pyro_bnn.tracking.base import Tracker, import_tool

__all__ = ["MLflow"]

_VALUE = 250
"""Characters of a parameter, which every kind of store takes."""
_AT_ONCE = 100
"""Parameters of one request."""


@final
class MLflow(Tracker):
    """
    Write curves as metrics of MLflow, with the epoch as their step; needs the extra `mlflow`.

    :param experiment: its name; made if it is not there.
    :param name: of the run.
    :param tracking_uri: where to; default MLFLOW_TRACKING_URI, or what MLflow takes without it.
    :param facts: see :class:`~pyro_bnn.tracking.Tracker`; the parameters of the run.
    """

    def __init__(
        self,
        experiment: str = "pyro-bnn",
        *,
        name: str | None = None,
        tracking_uri: str | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(facts)
        self.experiment, self.name, self.tracking_uri = experiment, name, tracking_uri
        self._tool = import_tool("mlflow", "mlflow")
        self._client: Any = None

    @classmethod
    def for_run(cls, name: str, folder: Path | None, facts: Mapping[str, Any]) -> "MLflow":
        """Return one that writes into the experiment pyro-bnn, as a run of the recipe's name."""
        return cls(name=name, facts=facts)

    def open(self, run: str) -> str:
        """Begin a run of the experiment, or go on with one."""
        self._client = self._tool.MlflowClient(tracking_uri=self.tracking_uri)
        if run:
            self._client.update_run(run, status="RUNNING")
            return run
        found = self._client.get_experiment_by_name(self.experiment)
        experiment = self._client.create_experiment(self.experiment) if found is None else found.experiment_id
        begun: str = self._client.create_run(experiment, run_name=self.name).info.run_id
        given = [(key, str(value)[:_VALUE]) for key, value in self.facts.items() if value is not None]
        params = [self._tool.entities.Param(key, value) for key, value in given]
        for first in range(0, len(params), _AT_ONCE):
            self._client.log_batch(begun, params=params[first : first + _AT_ONCE])
        return begun

    def write(self, part: str, epoch: int, values: Mapping[str, float]) -> None:
        """Write the numbers as one batch of metrics."""
        now, metric = int(time.time() * 1000), self._tool.entities.Metric
        self._client.log_batch(self.run, [metric(_key(part, name), v, now, epoch) for name, v in values.items()])

    def close(self) -> None:
        """Say that the run is over."""
        self._client.set_terminated(self.run)

    def last_epoch(self, part: str) -> int:
        """Ask the store."""
        return max((metric.step for metric in self._client.get_metric_history(self.run, _key(part, "nll"))), default=0)


def _key(part: str, name: str) -> str:
    return f"{part}/{name}" if part else name
