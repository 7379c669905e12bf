"""Compiled modules in the user's cache."""

from __future__ import annotations

import sys
import warnings
from types import SimpleNamespace

import pytest

from mgspmv.kernels import modules
from mgspmv.kernels.modules import specialize

SPIN, OTHER = specialize("spin.cu"), specialize("spin.cu", THREADS=64)


def forget():
    """Forget what was loaded, as another process does."""
    modules._load_module.cache_clear()
    modules._begin.cache_clear()


class PlayedCuda:
    """CuPy as far as it compiles, and says what it compiled."""

    def __init__(self) -> None:
        self.arch, self.version, self.compiled = "90", (13, 0), []
        compiler = SimpleNamespace(compile_using_nvrtc=self._compile)
        nvrtc = SimpleNamespace(getVersion=lambda: self.version)
        device = SimpleNamespace(compute_capability=self.arch)
        self.cuda = SimpleNamespace(compiler=compiler, nvrtc=nvrtc, Device=lambda: device)
        self.device = device

    def _compile(self, source, options, arch):
        assert "__global__" in source
        assert arch == self.device.compute_capability
        self.compiled.append(options)
        return f"code {len(self.compiled)}".encode(), None

    @staticmethod
    def RawModule(path):
        with open(path, "rb") as file:
            return file.read()


@pytest.fixture
def played(tmp_path, monkeypatch):
    """A new process, with an empty cache."""
    cuda = PlayedCuda()
    monkeypatch.setitem(sys.modules, "cupy", cuda)
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda.cuda)
    monkeypatch.setenv("MGSPMV_CACHE", str(tmp_path / "cache"))
    forget()
    yield cuda
    forget()


def test_a_module_is_compiled_once(played, tmp_path):
    for _ in range(2):
        for _ in range(2):
            assert modules.load_module(SPIN) == b"code 1"
        forget()  # as in another process
    assert len(played.compiled) == 1
    [path] = (tmp_path / "cache" / "kernels").iterdir()
    assert path.name.startswith("spin-")


def test_another_device_source_or_compiler_has_a_module_of_its_own(played, monkeypatch):
    modules.load_module(SPIN)
    assert modules.load_module(OTHER) == b"code 2"
    played.device.compute_capability = "80"
    assert modules.load_module(SPIN) == b"code 3"
    forget()
    played.version = (13, 1)
    assert modules.load_module(SPIN) == b"code 4"
    monkeypatch.setattr(modules, "read_source", lambda name: "extern __global__ void other();")
    forget()
    assert modules.load_module(SPIN) == b"code 5"
    forget()
    assert modules.load_module(SPIN) == b"code 5"


def test_a_cache_that_cannot_be_written(played, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")
        assert modules.load_module(SPIN) == b"code 1"
        assert modules.load_module(OTHER) == b"code 2"
    [said] = [str(w.message) for w in warned]
    assert said.startswith(f"compiled kernels cannot be cached in {tmp_path / 'cache' / 'kernels'} (")
    assert said.endswith("so every process will compile them; set $MGSPMV_CACHE to a writable folder")


def test_where_the_folder_is(monkeypatch, tmp_path):
    monkeypatch.setenv("MGSPMV_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert modules.find_folder() == tmp_path / "own"
    monkeypatch.delenv("MGSPMV_CACHE")
    assert modules.find_folder() == tmp_path / "xdg" / "mgspmv"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert modules.find_folder() == tmp_path / ".cache" / "mgspmv"
