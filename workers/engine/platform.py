"""The one module that knows Metal from a CPU: BLAS, threads, dtype, memory limits, giving memory back.

:func:`prepare` must run before the first ``import mlx.core`` of the process: a BLAS loaded with
RTLD_GLOBAL afterwards has no effect. Everything said about Metal here follows the documentation of mlx
and was not run on Apple Silicon by the authors' automated tests.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import gc
import os
import platform
import site
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

log = structlog.get_logger(__name__)

#: Free buffers mlx may keep for reuse, as a share of the budget; without a limit the pool hides free memory.
CACHE_SHARE = 0.1

#: Memory of one prefill chunk's activations and of the interpreter, kept free of KV.
SCRATCH_BYTES = 256 * 1024 * 1024

#: BLAS libraries tried in turn. BLIS has no penalty for few rows (1 x 576 x 1536: 56 against 223 us).
_SYSTEM_BLIS = ("libblis.so.4", "libblis.so.3")
_SYSTEM_OPENBLAS = ("libopenblas.so.0", "libopenblas.so")


@dataclass(frozen=True)
class Platform:
    """What the process runs on: ``device`` is metal or cpu, ``blas`` a short name, ``threads`` BLAS threads."""

    device: str
    blas: str
    threads: int


def _is_apple_silicon() -> bool:
    return sys.platform == "darwin" and platform.machine() == "arm64"


def _wheel_openblas() -> list[str]:
    """The OpenBLAS of the cmeel wheel, where it can run: it is built for AVX-512 alone, and on any other processor
    the first matrix product ends the process with an illegal instruction."""
    if "avx512f" not in _cpu_flags():
        return []
    found: list[str] = []
    for folder in site.getsitepackages():
        found += sorted(str(path) for path in Path(folder, "cmeel.prefix", "lib").glob("libopenblas.so*"))
    return found[:1]


def _cpu_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    line = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return set(line.partition(":")[2].split())


def _load_blas(explicit: str) -> str:
    """Load the best BLAS found and name it; "bundled" when none is there."""
    if explicit:
        ctypes.CDLL(explicit, mode=ctypes.RTLD_GLOBAL)
        return Path(explicit).name
    for name, candidates in (("blis", _SYSTEM_BLIS), ("openblas", _wheel_openblas()), ("openblas", _SYSTEM_OPENBLAS)):
        for candidate in candidates:
            try:
                ctypes.CDLL(candidate, mode=ctypes.RTLD_GLOBAL)
            except OSError:
                continue
            return name
    return "bundled"


def prepare(blas: str = "", threads: int = 0) -> Platform:
    """Set the process up for mlx; call once, first of all.

    Raises:
        OSError: the explicitly named BLAS cannot be loaded.
    """
    if "mlx.core" in sys.modules:
        raise RuntimeError("mlx is already imported")
    if _is_apple_silicon():
        return Platform("metal", "accelerate", 0)
    threads = threads or max(1, (os.cpu_count() or 2) - 1)
    for variable in ("OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ[variable] = str(threads)
    # On a CPU mlx compiles kernels with g++ into a predictable shared folder: no faster, and a local-user risk.
    os.environ.setdefault("MLX_DISABLE_COMPILE", "1")
    return Platform("cpu", _load_blas(blas), threads)


def machine_bytes() -> int:
    """Physical memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def memory_budget(configured: int = 0) -> int:
    """Bytes all engines together may use: as configured, or 70 % of the machine (macOS wires about 75 % at most)."""
    return configured or int(machine_bytes() * 0.7)


@dataclass(frozen=True)
class Memory:
    """The machine's (or container's) memory in bytes; ``strained`` when the system itself says it is short of it."""

    total: int
    available: int
    strained: bool = False


#: Share of the last 10 seconds in which no process could run for want of memory, percent, that counts as strain.
STALLED_PERCENT = 10.0
#: macOS: 1 normal, 2 warning, 4 critical.
_MAC_WARNING = 2


def read_memory() -> Memory | None:
    """What is free now, None where the system does not say. The macOS half was not run by the automated tests."""
    return _mac_memory() if sys.platform == "darwin" else _linux_memory()


def _linux_memory(root: Path = Path("/")) -> Memory | None:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        table = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
        total, available = table["MemTotal"], table["MemAvailable"]
    except (OSError, ValueError, KeyError, IndexError):
        return None
    try:  # a container may have less than its machine
        limit = int((root / "sys/fs/cgroup/memory.max").read_text())
        used = int((root / "sys/fs/cgroup/memory.current").read_text())
        statistics = dict(line.split() for line in (root / "sys/fs/cgroup/memory.stat").read_text().splitlines())
        used -= int(statistics.get("inactive_file", 0))  # files' cache, given up at need
        total, available = min(total, limit), min(available, max(0, limit - used))
    except (OSError, ValueError):
        log.debug("memory.no_container_limit")
    return Memory(total, available, _stalled(root) >= STALLED_PERCENT)


def _stalled(root: Path) -> float:
    """``full avg10`` of the kernel's pressure stall information."""
    try:
        full = next(line for line in (root / "proc/pressure/memory").read_text().splitlines() if line.startswith("full"))
        return float(full.split("avg10=")[1].split()[0])
    except (OSError, ValueError, IndexError, StopIteration):
        return 0.0


def _mac_memory() -> Memory | None:
    level, free_percent = _sysctl("kern.memorystatus_vm_pressure_level"), _sysctl("kern.memorystatus_level")
    if level is None or free_percent is None:
        return None
    total = machine_bytes()
    return Memory(total, total * free_percent // 100, level >= _MAC_WARNING)


def _sysctl(name: str) -> int | None:
    value, size = ctypes.c_int(), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
    try:
        failed = ctypes.CDLL(None).sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
    except (OSError, AttributeError):
        return None
    return None if failed else value.value


def set_limits(budget: int) -> None:
    """Tell mlx its limits. On a CPU the memory limit is only a guideline and a failed allocation ends the process."""
    import mlx.core as mx

    mx.set_cache_limit(int(budget * CACHE_SHARE))
    if mx.metal.is_available():
        recommended = int(mx.device_info().get("max_recommended_working_set_size", budget))
        mx.set_memory_limit(min(budget, recommended))
        mx.set_wired_limit(min(budget, recommended))


def resident_dtype(configured: str, device: str) -> str:
    """float32, bfloat16, float16 or native, for ``auto`` as well. Half kernels on a CPU give 7 tok/s, float32 24."""
    if configured != "auto":
        return configured
    return "native" if device == "metal" else "float32"


def apply_dtype(model: Any, wanted: str) -> Any:
    """Bring a loaded model to the dtype it runs in; a quantized one is made dense unless ``native``."""
    if wanted == "native":
        return model
    import mlx.core as mx
    import mlx.nn as nn

    if any(isinstance(module, nn.QuantizedLinear | nn.QuantizedEmbedding) for _, module in model.named_modules()):
        from mlx_lm.utils import dequantize_model

        model = dequantize_model(model)
    model.set_dtype(getattr(mx, wanted))
    mx.eval(model.parameters())
    return model


def give_memory_back() -> None:
    """After the last reference to a model is gone. Without malloc_trim glibc keeps 560 MiB of 620."""
    import mlx.core as mx

    gc.collect()
    mx.clear_cache()
    if sys.platform == "linux":
        try:
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        except (OSError, AttributeError):  # another libc than glibc has nothing to trim
            return


def resident_bytes() -> int:
    """Memory of this process as the system sees it."""
    if sys.platform == "linux":
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
