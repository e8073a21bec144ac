"""
The README of a posterior's repository: metadata that the Hugging Face Hub reads, how to load it, and its card.

The metadata are YAML between `---`: the library, what it is for, tags, and as `model-index` the results on test, where
there are any. What a posterior says of itself is of unknown makers and is written as words.
"""

from collections.abc import Mapping
from typing import Any

from pyro_bnn.common.shown import in_markdown, visible
from pyro_bnn.posterior.hub import import_hub

__all__ = ["readme"]

_METRICS = {"accuracy": "accuracy", "pred_nll": "nll", "ece": "ece", "rmse": "rmse"}


def readme(
    info: Mapping[str, Any],
    address: str,
    *,
    card: str | None = None,
    scores: Mapping[str, float] | None = None,
    license: str | None = None,
) -> str:
    """
    Return the README.

    :param info: that of the posterior.
    :param address: `hf://user/name`, where it will be.
    :param card: Markdown that says what it is; default what `info` knows.
    :param scores: of the test rows, by the names of `Posterior.evaluate`: accuracy, pred_nll, ece, rmse.
    :param license: the identifier of a licence, such as "mit"; left out by default.
    """
    hub = import_hub()
    name, data = address.rpartition("/")[2], visible(info.get("data") or "")
    task = _task(info)
    results = [
        hub.EvalResult(
            task_type=task or "other",
            dataset_type=data,
            dataset_name=data,
            metric_type=kind,
            metric_value=round(float(scores[key]), 6),
        )
        for key, kind in _METRICS.items()
        if data and scores is not None and key in scores
    ]
    metadata = hub.ModelCardData(
        library_name="pyro-bnn",
        license=license,
        pipeline_tag=task,
        tags=["bayesian-neural-network", "pyro", "uncertainty"],
        **({"model_name": name, "eval_results": results} if results else {}),
    )
    text = _told(info, name) if card is None else card.strip()
    use = f'```python\nimport pyro_bnn as pb\n\nposterior = pb.load("{address}")\n```'
    return f'---\n{metadata.to_yaml()}\n---\n\n{text}\n\n## Load it\n\n`pip install "pyro-bnn[hub]"`\n\n{use}\n'


def _task(info: Mapping[str, Any]) -> str | None:
    """Return what the hub calls the task, as far as that is known."""
    task, shape = info.get("task"), info.get("input_shape") or []
    if task == "classification":
        return "image-classification" if len(shape) == 3 else "tabular-classification" if len(shape) == 1 else None
    return "tabular-regression" if task == "regression" and len(shape) == 1 else None


def _told(info: Mapping[str, Any], name: str) -> str:
    """Return what a posterior without a card says of itself."""
    known = {
        "data": info.get("data"),
        "rows trained on": info.get("num_data"),
        "method": info.get("method"),
        "eta": info.get("eta"),
        "temperature": info.get("temperature"),
        "shape of an input": info.get("input_shape"),
        "classes": info.get("class_names"),
    }
    lines = [f"- {key}: {in_markdown(value)}" for key, value in known.items() if value is not None]
    return "\n".join([f"# {name}\n", "A posterior over the weights of a network, made with pyro_bnn.\n", *lines])
