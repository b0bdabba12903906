"""The wheel: built from the sources, installed where no clone is, and started by its own command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import httpx
import pytest

from tests.system.stack import MODEL, ROOT, clean_environment, eventually, free_port
from workers.command import user_data_dir

pytestmark = pytest.mark.stack

#: Parts of a clone that the wheel is built from.
SOURCES = ("mlxplatform", "workers", "requirements", "pyproject.toml", "README.md")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(source, folder / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", "out", "."]
    subprocess.run(command, cwd=folder, check=True)
    return next((folder / "out").glob("*.whl"))


def test_the_wheel_holds_everything_but_the_tests(wheel: Path) -> None:
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    wanted = {
        str(path.relative_to(ROOT))
        for package in ("mlxplatform", "workers")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert held == wanted


def test_the_wheel_asks_for_what_the_clone_installs(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    metadata = archive.read(next(name for name in archive.namelist() if name.endswith("METADATA"))).decode()
    for name in ("base.in", "engine.in"):
        for line in (ROOT / "requirements" / name).read_text().splitlines():
            if line and not line.startswith("#"):
                name, _, version = line.split(";")[0].strip().partition("==")
                assert f"requires-dist: {name.replace('_', '-')}=={version}".lower() in metadata.lower()


def test_the_installed_command_starts_the_platform(wheel: Path, home_template: Path, tmp_path: Path) -> None:
    place = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)}))
    # The dependencies are those of this environment; downloading them again would test the index.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = place / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True)
    command = place / "bin" / "mlx-platform"
    data, port = tmp_path / "data", free_port()
    home = data / "mlx-platform"
    shutil.copytree(home_template / "models", home / "models")
    environ = clean_environment(home, PORT=str(port), MODEL=MODEL, XDG_DATA_HOME=str(data))
    del environ["PYTHONPATH"], environ["MLXPLATFORM_HOME"]
    usage = subprocess.run([command, "--help"], env=environ, cwd=tmp_path, capture_output=True, text=True, check=True)
    if sys.platform == "linux":
        assert str(home) in usage.stdout
    else:
        environ["MLXPLATFORM_HOME"] = str(home)
    output = tmp_path / "output"
    with output.open("wb") as out:
        running = subprocess.Popen([command], env=environ, cwd=tmp_path, stdout=out, stderr=out, start_new_session=True)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            eventually(lambda: http.get("/health").status_code == 200, seconds=120, what=f"/health of the wheel: {output}")
            page = http.get("/", follow_redirects=True)
            assert "Sign in" in page.text
            assert http.get("/static/console/console.css").status_code == 200
            asked = {
                "messages": [{"role": "user", "content": "What is the capital of Japan?"}],
                "temperature": 0,
                "max_tokens": 16,
            }
            assert "Tokyo" in http.post("/v1/chat/completions", json=asked).json()["choices"][0]["message"]["content"]
        listed = subprocess.run([command, "keys", "list"], env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (listed.returncode, listed.stdout) == (0, ""), listed.stderr
        code = "import mlxplatform; print(mlxplatform.__file__)"
        where = subprocess.run([python, "-c", code], env=environ, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert where.stdout.startswith(str(place))
    finally:
        running.terminate()
        running.wait(30)
    assert not (tmp_path / "var").exists()


def test_the_data_directory_is_the_usual_one_of_the_system() -> None:
    assert user_data_dir("linux", {"XDG_DATA_HOME": "/data"}) == Path("/data/mlx-platform")
    assert user_data_dir("linux", {}) == Path.home() / ".local/share/mlx-platform"
    assert user_data_dir("darwin", {}).parts[-2:] == ("Application Support", "mlx-platform")
    assert os.sep in str(user_data_dir())
