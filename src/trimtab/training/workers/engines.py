"""The engines that can train the runs of a comparison, by name."""

from trimtab.training.workers.local_pool import LocalEngine
from trimtab.training.workers.pool import Engine
from trimtab.training.workers.ray_engine import RayEngine

ENGINES = ("local", "ray")


def engine_named(name: str, ray_address: str | None = None) -> Engine:
    """Processes on this machine, or Ray.

    Args:
        name: `local` or `ray`.
        ray_address: `HOST:PORT` of a Ray cluster, or `auto`; None: that of RAY_ADDRESS, else a Ray of one's own.

    Raises:
        ValueError: If there is no such engine, or the address is not for it.
        ModuleNotFoundError: If Ray is not installed.
    """
    if name not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, not {name!r}")
    if name == "ray":
        return RayEngine(ray_address)
    if ray_address is not None:
        raise ValueError("--ray-address is where Ray runs; give --engine ray with it, or leave it out")
    return LocalEngine()
