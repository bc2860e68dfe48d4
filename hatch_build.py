"""Builds the CPU kernels into the wheel, if there is a C compiler; without them trimtab is slower, nothing else."""

import ctypes
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import sys_tags

KERNELS = Path("src/trimtab/bnp/backends")
FLAGS = ["-O3", "-std=c11", "-shared", "-fPIC"]


class KernelBuild(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles native.c before the wheel is put together, or before an editable install points to the source."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile; a wheel with a library in it is for this platform only, but for any Python."""
        library = Path(self.root) / KERNELS / "_native.so"
        problem = build(Path(self.root) / KERNELS / "native.c", library)
        if problem is None:
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{next(sys_tags()).platform}"
            build_data["artifacts"].append(f"/{KERNELS.as_posix()}/_native.so")
        else:
            self.app.display_warning(f"The CPU kernels of trimtab were not built: {problem}")


def build(source: Path, library: Path) -> str | None:
    """Compile the library; returns why it could not be done."""
    if sys.platform == "win32":
        return "there are none for Windows."
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if compiler is None:
        return "there is no C compiler (cc, gcc or clang)."
    try:
        library.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent) as folder:  # nothing half-written is left behind
            made = Path(folder) / library.name
            command = [*shlex.split(compiler), *FLAGS, str(source), "-o", str(made), "-lm"]
            subprocess.run(command, check=True, capture_output=True, text=True)
            ctypes.CDLL(str(made)).trimtab_version()
            made.replace(library)
    except subprocess.CalledProcessError as error:
        return f"{compiler} failed ({error.stderr.strip()[:200]})."
    except (OSError, AttributeError, ValueError) as error:
        return f"{error}."
    return None
