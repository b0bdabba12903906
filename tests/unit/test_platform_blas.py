"""Which BLAS a CPU engine may load: never one the processor cannot run."""

from __future__ import annotations

import pytest

from workers.engine import platform


def test_the_wheel_built_for_avx512_is_left_alone_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "_cpu_flags", lambda: {"avx2", "fma"})
    assert platform._wheel_openblas() == []
    monkeypatch.setattr(platform, "_cpu_flags", lambda: {"avx2", "avx512f"})
    assert all(path.endswith("libopenblas.so") or "libopenblas.so" in path for path in platform._wheel_openblas())
