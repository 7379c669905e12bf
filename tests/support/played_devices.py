"""CuPy, NVML and NCCL as checks see them, for devices that are not there: what is copied is copied between arrays."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError
from itertools import count
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

GIB = 1 << 30


class PlayedArray:
    """An array on a device, known by an address."""

    def __init__(self, cuda: PlayedCuda, values: np.ndarray) -> None:
        self.values, self.nbytes = values, values.nbytes
        self.data = SimpleNamespace(ptr=cuda.keep(values))

    def __eq__(self, other: Any) -> Any:
        return self.values == other

    def sum(self) -> Any:
        return self.values.sum()


class PlayedCuda:
    """A machine with GPUs, which a test changes as it needs."""

    class CUDARuntimeError(RuntimeError):
        pass

    class NcclError(RuntimeError):
        pass

    class NvmlError(Exception):
        pass

    def __init__(self, n: int = 2) -> None:
        self.n, self.known = n, n
        self.arch, self.name = "90", b"NVIDIA H200"
        self.driver, self.runtime_cuda, self.driver_number = 13000, 13000, "580.65.06"
        self.installed: dict[str, str] = {"cupy-cuda13x": "14.2.0"}
        self.free, self.total = 130 * GIB, 141 * GIB
        self.peers = True
        self.damages = False
        self.ecc, self.reasons, self.persistence = 0, 0, 1
        self.nvlinks, self.lanes, self.generation = 18, 16, 5
        self.has_nccl, self.nccl_fails, self.gathers_wrong = True, False, False
        self.compile_error: Exception | None = None
        self.ones = 1
        self._memory: dict[int, np.ndarray] = {}
        self._numbers = count(1000)

    def keep(self, values: np.ndarray) -> int:
        address = next(self._numbers)
        self._memory[address] = values
        return address

    # --- CuPy

    def count(self) -> int:
        if not self.n:
            raise self.CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")
        return self.n

    def copy(self, target: int, source: int, *_: Any) -> None:
        if target in self._memory and source in self._memory:
            self._memory[target][:] = self._memory[source] + int(self.damages)

    def allocate(self, n: int) -> Any:
        return SimpleNamespace(ptr=self.keep(np.zeros(n, np.uint8)))

    def compile(self, source: str, options: Any) -> Any:
        assert "__global__" in source
        if self.compile_error is not None:
            raise self.compile_error
        return b"code", None

    def install(self, monkeypatch: Any) -> None:
        """Have CuPy, pynvml and NCCL be those of this machine."""
        monkeypatch.setitem(sys.modules, "cupy", self.make_cupy())
        monkeypatch.setitem(sys.modules, "cupy.cuda", sys.modules["cupy"].cuda)
        monkeypatch.setitem(sys.modules, "pynvml", self.make_nvml())
        from mgspmv.doctor import device

        def find(name: str) -> str:
            if name not in self.installed:
                raise PackageNotFoundError(name)
            return self.installed[name]

        monkeypatch.setattr(device, "version", find)
        monkeypatch.setattr(device, "COPY_BYTES", 1 << 12)

    def make_cupy(self) -> Any:
        cupy: Any = ModuleType("cupy")
        cupy.__spec__ = ModuleSpec("cupy", None)
        cupy.zeros = lambda n, dtype: PlayedArray(self, np.zeros(n, dtype))
        cupy.full = lambda n, value, dtype: PlayedArray(self, np.full(n, value, dtype))
        cupy.arange = lambda n, dtype: _Ones(self.ones, n, self)
        cuda: Any = ModuleType("cupy.cuda")
        cupy.cuda = cuda
        cuda.runtime = SimpleNamespace(
            CUDARuntimeError=self.CUDARuntimeError,
            getDeviceCount=self.count,
            getDeviceProperties=lambda k: {"name": self.name, "totalGlobalMem": self.total},
            driverGetVersion=lambda: self.driver,
            runtimeGetVersion=lambda: self.runtime_cuda,
            memGetInfo=lambda: (self.free, self.total),
            memcpyHostToDevice=1,
            memcpyDeviceToHost=2,
            memcpyAsync=self.copy,
            memcpyPeerAsync=lambda target, b, source, a, n, stream: self.copy(target, source),
            deviceCanAccessPeer=lambda a, b: int(self.peers),
            deviceEnablePeerAccess=lambda b: None,
        )
        cuda.Device = lambda k=0: _Device(self, k)
        cuda.Stream = lambda non_blocking: SimpleNamespace(ptr=7, synchronize=lambda: None)
        cuda.alloc_pinned_memory = cuda.alloc = self.allocate
        cuda.compiler = SimpleNamespace(compile_using_nvrtc=self.compile)
        cuda.nvrtc = SimpleNamespace(getVersion=lambda: (13, 0))
        cuda.nccl = self.make_nccl()
        return cupy

    # --- NVML

    def make_nvml(self) -> Any:
        def start() -> None:
            if not self.known:
                raise self.NvmlError("Driver Not Loaded")

        def find_state(handle: Any, link: int) -> int:
            if link >= self.nvlinks:
                raise self.NvmlError("Not Supported")
            return 1

        return SimpleNamespace(
            NVML_MEMORY_ERROR_TYPE_UNCORRECTED=1,
            NVML_VOLATILE_ECC=0,
            nvmlInit=start,
            nvmlDeviceGetCount=lambda: self.known,
            nvmlSystemGetDriverVersion=lambda: self.driver_number.encode(),
            nvmlDeviceGetHandleByPciBusId=lambda bus: bus,
            nvmlDeviceGetTotalEccErrors=lambda *_: self.ecc,
            nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: self.reasons,
            nvmlDeviceGetPersistenceMode=lambda _: self.persistence,
            nvmlDeviceGetNvLinkState=find_state,
            nvmlDeviceGetNvLinkVersion=lambda handle, link: 4,
            nvmlDeviceGetCurrPcieLinkWidth=lambda _: self.lanes,
            nvmlDeviceGetMaxPcieLinkGeneration=lambda _: self.generation,
        )

    # --- NCCL

    def make_nccl(self) -> Any:
        given: list[tuple[int, int]] = []

        def connect(devices: list[int]) -> list[Any]:
            if self.nccl_fails:
                raise self.NcclError("NCCL_ERROR_SYSTEM_ERROR: unhandled system error")
            return [SimpleNamespace(allGather=lambda own, all_, *_: given.append((own, all_))) for _ in devices]

        def end() -> None:
            gathered = np.concatenate([self._memory[own] for own, _ in given]) + int(self.gathers_wrong)
            for _, target in given:
                self._memory[target][:] = gathered
            given.clear()

        return SimpleNamespace(
            available=self.has_nccl,
            NcclError=self.NcclError,
            NCCL_INT64=4,
            NcclCommunicator=SimpleNamespace(initAll=connect),
            groupStart=lambda: None,
            groupEnd=end,
            get_version=lambda: 22703,
        )


class _Ones:
    """What `(cupy.arange(n) * 0 + 1).sum()` is asked of."""

    def __init__(self, one: int, n: int, cuda: PlayedCuda) -> None:
        self._one, self._n, self._cuda = one, n, cuda

    def __mul__(self, other: int) -> _Ones:
        return self

    def __add__(self, other: int) -> _Ones:
        return self

    def sum(self, dtype: Any) -> float:
        if self._cuda.compile_error is not None:
            raise self._cuda.compile_error
        return float(self._one * self._n)


class _Device(nullcontext):  # type: ignore[type-arg]
    def __init__(self, cuda: PlayedCuda, k: int) -> None:
        super().__init__()
        self.id, self.compute_capability, self.pci_bus_id = k, cuda.arch, f"0000:0{k}:00.0"

    def synchronize(self) -> None:
        pass
