"""How many processes may share a GPU, and whether NVIDIA's multi-process service lets them compute at once.

Without it the processes on a GPU take turns. With it their kernels run side by side, so that small networks, which do
not fill a GPU, are limited by the cores that drive them instead.
"""

import errno
import os
import socket
from pathlib import Path

import torch

PIPES, DEFAULT_PIPES = "CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"
CORES_PER_TURN = 4
"""Cores of a machine for each run on its GPU where they take turns: of `cnn5` at batch size 128 on an H200 with 16
cores, 4 at a time are each as fast as one alone, 8 take 1.6 times as long."""
CORES_WITH_SERVICE = 2
"""The same with the service: a core for the steps and one for what stands beside them. This and the bytes below are
chosen, not measured; `benchmarks/sharing.py` measures what is gained on a machine."""
BYTES_WITH_SERVICE = 4 << 30
"""Bytes of the GPU for each run: CUDA itself takes half a gigabyte in each process."""
MOST_WITH_SERVICE = 48
"""The service has no more clients on a GPU."""


def multi_process_service() -> bool:
    """Whether the service's control daemon runs: whether something answers where CUDA, too, would look for it."""
    path = Path(os.environ.get(PIPES) or DEFAULT_PIPES) / "control"
    if not hasattr(socket, "AF_UNIX") or not path.exists():
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        try:
            # The socket stays when the daemon has ended, and refuses then. One of another kind is no stream, but there.
            return client.connect_ex(str(path)) in (0, errno.EPROTOTYPE, errno.EAGAIN, errno.EINPROGRESS)
        except OSError:  # a path that is too long for a socket
            return False


def runs_on_a_gpu(cores: int, device: torch.device) -> int:
    """How many runs share a GPU by default, on a machine with so many cores for them."""
    if not multi_process_service():
        return cores // CORES_PER_TURN
    return min(cores // CORES_WITH_SERVICE, gpu_memory(device) // BYTES_WITH_SERVICE, MOST_WITH_SERVICE)


def gpu_memory(device: torch.device) -> int:
    """The bytes of a GPU."""
    return int(torch.cuda.get_device_properties(device).total_memory)


def sharing_notes(device: torch.device) -> list[str]:
    """What a user should know of how runs share the device: a sentence, or none."""
    if device.type != "cuda":
        return []
    if multi_process_service():
        return ["NVIDIA's multi-process service is running, so that more runs share the GPU (--jobs)."]
    return ["Runs take turns on the GPU; with NVIDIA's multi-process service more of them share it (--jobs)."]
