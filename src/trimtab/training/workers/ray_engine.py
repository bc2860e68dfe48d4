"""The connection to Ray: to a cluster, or to a Ray on this machine that lives as long as the pool."""

import logging
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO

import torch

from trimtab.integrations.needed import needed
from trimtab.training.interruption import held_back
from trimtab.training.workers.local_pool import default_jobs
from trimtab.training.workers.ray_pool import RayPool

SECONDS_TO_CONNECT = 5.0
RUNS_ON_A_GPU = 4
"""So many share one: whether a node has NVIDIA's multi-process service is not known here."""
_OBJECTS = 100 << 20  # bytes for the objects of a Ray of ours: tasks and outcomes are small
# Ray reads these when it is imported. Unless it is told otherwise, it reports to its makers, and asks an address where
# something else than Ray answers for a quarter of an hour.
_DEFAULTS = {"RAY_USAGE_STATS_ENABLED": "0"}
_DEFAULTS_FOR_CLUSTERS = {"RAY_NUM_REDIS_GET_RETRIES": "1"}


class RayEngine:
    """Trains by Ray tasks.

    Args:
        address: `HOST:PORT` of a cluster, or `auto` for the one that runs on this machine. By default what RAY_ADDRESS
            says; else a Ray is started on this machine, and ended with the pool. If the process is connected to a Ray
            already, that one is used and left as it is.

    Raises:
        ModuleNotFoundError: If Ray is not installed.
        ValueError: If this is no such address.
    """

    def __init__(self, address: str | None = None) -> None:
        self._address = os.environ.get("RAY_ADDRESS") or None if address is None else address
        if self._address is not None and not re.fullmatch(r"auto|[^/\s]+:\d+", self._address):
            raise ValueError(
                f"the address of a Ray cluster is HOST:PORT, or auto on one of its machines, not {self._address!r}"
            )
        for name, value in {**_DEFAULTS, **(_DEFAULTS_FOR_CLUSTERS if self._address else {})}.items():
            os.environ.setdefault(name, value)
        self._ray = needed("ray", extra="ray")

    def default_jobs(self, device: torch.device, threads: int) -> int:
        """As many as the cluster has room for, or this machine where Ray is to be started."""
        if self._address is None and not self._ray.is_initialized():
            return default_jobs(device, threads)
        with self._connected():
            nodes = self._nodes(device, threads)
        runs = [int(node.get("CPU", 0)) // threads for node in nodes]
        if device.type != "cpu":
            runs = [min(cores, RUNS_ON_A_GPU * int(node["GPU"])) for cores, node in zip(runs, nodes, strict=True)]
        return sum(runs)

    @contextmanager
    def pool(self, number: int, threads: int, device: torch.device) -> Iterator[RayPool]:
        """A pool of so many tasks at a time, stopped when the block ends."""
        with self._connected(number * threads) as deliver, redirect_stdout(_WithoutRay(sys.stdout)):
            nodes = self._nodes(device, threads)
            cards = 0 if device.type == "cpu" else int(sum(node["GPU"] for node in nodes))
            pool = RayPool(self._ray, number, threads, 1 / max(-(-number // cards), 1) if cards else 0, deliver)
            try:
                yield pool
            finally:
                pool.stop()

    @contextmanager
    def _connected(self, cores: int | None = None) -> Iterator[Callable[[], None]]:
        """A connection to the cluster, or to a new Ray with so many cores; one that is there already is used.

        Signals are held back meanwhile, since an exception in the midst of Ray comes out as another one; what this
        yields delivers them.
        """
        with held_back() as deliver:
            if self._ray.is_initialized():
                yield deliver
                return
            try:
                self._init(cores)
                deliver()
                yield deliver
            finally:
                self._ray.shutdown()

    def _init(self, cores: int | None) -> None:
        """Connect. Ray makes SIGTERM end the process, so the handler that was there is put back."""
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
        if self._address is None:
            mine = {"num_cpus": cores, "include_dashboard": False, "object_store_memory": _OBJECTS}
            options |= {"address": "local", **mine}
        else:
            _check_answer(self._address)
            options |= {"address": self._address}
        before = signal.getsignal(signal.SIGTERM)
        terminated = False
        try:
            self._ray.init(**options)
        except SystemExit:  # what Ray has made of a SIGTERM
            terminated = True
        except (OSError, ValueError, RuntimeError) as error:
            what = "Ray cannot be started here" if self._address is None else f"no connection to Ray at {self._address}"
            raise ValueError(f"{what}: {str(error).strip().partition(chr(10))[0].rstrip('.')}") from error
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, before)
        if terminated:
            signal.raise_signal(signal.SIGTERM)

    def _nodes(self, device: torch.device, threads: int) -> list[dict[str, float]]:
        """The resources of each node that can train a run.

        Raises:
            ValueError: If there is none, so that Ray would wait for ever.
        """
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        fitting = [node for node in nodes if node.get("CPU", 0) >= threads]
        if not fitting:
            most = int(max((node.get("CPU", 0) for node in nodes), default=0))
            raise ValueError(f"no node of Ray has {threads} cores, but {most} at most; give --threads so many or fewer")
        if device.type != "cpu":
            fitting = [node for node in fitting if node.get("GPU", 0) >= 1]
            if not fitting:
                raise ValueError("no node of Ray has a GPU and enough cores; train with --device cpu, or add one")
        return fitting


def _check_answer(address: str) -> None:
    """Refuse an address where nothing answers; Ray itself would try for a long time."""
    host, _, port = address.rpartition(":")
    if not host:  # auto
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_CONNECT).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"no Ray answers at {address}: {why}; `ray start --head` prints the address to use") from error


class _WithoutRay:
    """A stream without what Ray's own threads print to it, as when a worker dies, which the pool deals with."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write, unless it is Ray that does."""
        return len(text) if threading.current_thread().name.startswith("ray_") else self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
