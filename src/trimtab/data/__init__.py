"""Data sets as tensors, and batches of them on the training device."""

from trimtab.data.catalog import DATASETS, batches, load
from trimtab.data.dataset import Dataset, Split
from trimtab.data.epochs import Batches, Plan, fitted, normalization
from trimtab.data.errors import DataError
from trimtab.data.fetch import Progress, fetch
from trimtab.data.imagefolder import FolderBatches, ImageFolder
from trimtab.data.listing import Entry, inventory
from trimtab.data.synthetic import gaussian
from trimtab.data.verification import Verified, verify_files

__all__ = [
    "DATASETS",
    "Batches",
    "DataError",
    "Dataset",
    "Entry",
    "FolderBatches",
    "ImageFolder",
    "Plan",
    "Progress",
    "Split",
    "Verified",
    "batches",
    "fetch",
    "fitted",
    "gaussian",
    "inventory",
    "load",
    "normalization",
    "verify_files",
]
