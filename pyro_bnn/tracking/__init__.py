"""Curves of a training where people look at them: TensorBoard, MLflow, Weights & Biases, or a tracker of your own."""

from pyro_bnn.tracking.base import Tracker, scalars
from pyro_bnn.tracking.mlflow import MLflow
from pyro_bnn.tracking.tensorboard import TensorBoard
from pyro_bnn.tracking.wandb import WandB

__all__ = ["MLflow", "TensorBoard", "Tracker", "WandB", "scalars"]
