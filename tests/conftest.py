"""Settings for all tests."""

import os

import torch
from hypothesis import settings

torch.set_num_threads(1)  # two test processes share two cores
settings.register_profile("ci", derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")
