"""How many runs share a GPU, with NVIDIA's multi-process service and without: sockets in a made directory, no GPU."""

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from trimtab.training.workers import gpu_sharing, local_pool
from trimtab.training.workers.gpu_sharing import multi_process_service, sharing_notes
from trimtab.training.workers.local_pool import default_jobs

GPU = torch.device("cuda")


@pytest.fixture
def pipes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of pipes; its path is short, as those of sockets have to be."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", folder)
        yield Path(folder)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_pool, "usable_cores", lambda: 16)
    monkeypatch.setattr(gpu_sharing, "gpu_memory", lambda device: 140 << 30)


def listening(pipes: Path, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    """What the control daemon does."""
    server = socket.socket(socket.AF_UNIX, kind)
    server.bind(str(pipes / "control"))
    if kind != socket.SOCK_DGRAM:
        server.listen(1)
    return server


def test_nothing_is_there(pipes: Path) -> None:
    assert not multi_process_service()


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_a_daemon_answers_until_it_ends(pipes: Path, kind: socket.SocketKind) -> None:
    with listening(pipes, kind):
        assert all(multi_process_service() for _ in range(5))  # also while its queue is full
    assert (pipes / "control").exists() and not multi_process_service()


def test_a_file_is_no_daemon(pipes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (pipes / "control").touch()
    assert not multi_process_service()
    far = pipes / ("a" * 120)
    far.mkdir()
    (far / "control").touch()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(far))
    assert not multi_process_service()


@pytest.mark.usefixtures("machine")
def test_more_runs_share_a_gpu_with_the_service(pipes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_jobs(GPU) == 4 and "take turns" in sharing_notes(GPU)[0]
    with listening(pipes):
        assert default_jobs(GPU) == 8 and default_jobs(GPU, 4) == 2 and default_jobs(GPU, 16) == 1
        assert "multi-process service is running" in sharing_notes(GPU)[0]
        monkeypatch.setattr(gpu_sharing, "gpu_memory", lambda device: 12 << 30)
        assert default_jobs(GPU) == 3
        monkeypatch.setattr(gpu_sharing, "gpu_memory", lambda device: 1 << 40)
        monkeypatch.setattr(local_pool, "usable_cores", lambda: 256)
        assert default_jobs(GPU) == 48


@pytest.mark.usefixtures("machine")
def test_a_cpu_does_not_ask(pipes: Path) -> None:
    with listening(pipes):
        assert sharing_notes(torch.device("cpu")) == []
        assert default_jobs(torch.device("cpu")) <= 16
