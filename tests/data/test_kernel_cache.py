"""Kernels run wherever peerbayes can be imported: machine code is kept where that is possible and safe."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numba
import pytest
from numba.core.caching import CacheImpl, UserProvidedCacheLocator

from peerbayes.data.kernel_cache import njit, private_folder


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """A read-only installation without a home directory, whose temporary files are in a folder of their own."""
    monkeypatch.setattr(CacheImpl, "_locator_classes", [UserProvidedCacheLocator])
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(RuntimeError, match="no locator"):
        numba.njit(cache=True)(lambda x: x)
    return tmp_path


def twice(x):
    return 2 * x


def test_machine_code_is_kept_among_temporary_files(nowhere):
    assert njit(cache=True, nogil=True)(twice)(4) == 8
    assert len(list(nowhere.rglob("*.nbc"))) == 1
    again = njit(cache=True, nogil=True)(twice)
    assert again(4) == 8 and sum(again.stats.cache_hits.values()) == 1


def refuse(folder, monkeypatch):
    folder.write_text("a file has this name")


def open_to_all(folder, monkeypatch):
    folder.mkdir()
    folder.chmod(0o777)


def link_elsewhere(folder, monkeypatch):
    folder.symlink_to(folder.parent, target_is_directory=True)


def own_no_longer(folder, monkeypatch):
    folder.mkdir(mode=0o700)
    owner = os.lstat(folder).st_uid
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    folder.rename(folder.with_name(f"peerbayes-kernels-{owner + 1}"))


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="folders of other systems have no owner")
@pytest.mark.parametrize("obstacle", [refuse, open_to_all, link_elsewhere, own_no_longer])
def test_code_that_another_user_could_write_is_not_run(nowhere, monkeypatch, obstacle):
    obstacle(nowhere / f"peerbayes-kernels-{os.getuid()}", monkeypatch)
    assert private_folder() is None
    assert njit(cache=True)(twice)(4) == 8
    assert not list(nowhere.rglob("*.nbc"))


def test_no_temporary_folder_at_all(nowhere, monkeypatch):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/dev/null")
    assert njit(cache=True)(twice)(4) == 8


def test_every_kernel_is_there_without_a_place_for_code(tmp_path):
    """A copy of the package in which nothing can be written, in a process without a home directory."""
    package = Path(sys.modules["peerbayes"].__file__).parent
    copied = tmp_path / "read-only" / "peerbayes"
    for path in package.rglob("*.py"):
        target = copied / path.relative_to(package)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    for folder in {path.parent for path in copied.rglob("*.py")}:
        (folder / "__pycache__").write_text("a file, so that no folder can have this name")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    modules = [path.stem for path in (copied / "model" / "kernels").glob("*.py") if "gpu" not in path.stem]
    statements = [
        "import numpy as np, peerbayes",
        *(f"import peerbayes.model.kernels.{name}" for name in modules),
        "from peerbayes.data.moment_kernels import mark",
        "seen = np.zeros(3, dtype=bool)",
        "mark(np.array([[2]]), np.array([0]), np.array([0]), np.array([0]), seen)",
        "print(peerbayes.__file__, *seen)",
    ]
    code = "\n".join(statements)
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"} | {
        "PYTHONPATH": str(copied.parent),
        "HOME": "/dev/null",
        "XDG_CACHE_HOME": "/dev/null",
        "TMPDIR": str(temporary),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(copied / "__init__.py"), "False", "False", "True"]
    assert list(temporary.rglob("*.nbc"))
