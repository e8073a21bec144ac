"""Data: load by name or file, split, standardise, and walk through in batches."""

from pyro_bnn.data.augment import AUGMENTATIONS
from pyro_bnn.data.checks import check_labels
from pyro_bnn.data.frames import from_frame, read_csv
from pyro_bnn.data.load import Data, load_data
from pyro_bnn.data.on_disk import MappedRows, mapped
from pyro_bnn.data.sources import DATASETS, Source, data_root
from pyro_bnn.data.split import Split, as_split, batches, subset
from pyro_bnn.data.standardise import Standardised, Standardiser

__all__ = [
    "AUGMENTATIONS",
    "DATASETS",
    "Data",
    "MappedRows",
    "Source",
    "Split",
    "Standardised",
    "Standardiser",
    "as_split",
    "batches",
    "check_labels",
    "data_root",
    "from_frame",
    "load_data",
    "mapped",
    "read_csv",
    "subset",
]
