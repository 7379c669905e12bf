"""Functions that Numba compiles, and their machine code in files, loaded without Numba, which takes half a second.

    function, types of its arguments  --Numba-->  LLVM IR  --LLVM-->  object file
    object file                       --LLVM-->  function that ctypes calls

A function must take C-ordered arrays, numbers, None and tuples of integers, which are constants of the code, and return
nothing, integers or floats. It must need nothing from outside its own code, such as Numba's runtime, which allocates
arrays and raises errors: LLVM proves that by removing calls that are never reached. Other functions and arguments are
left to Numba, and compiled by each process.

Functions and constants from other files are compiled in, so each state of these files has a separate folder.

To load Numba takes 0.5 s and to compile a function 0.1 s or more, which is longer than all work on a small input. So a
caller that can do the same without a function asks first whether it is worth calling.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

import numpy as np

from mgspmv.errors import MgspmvError
from mgspmv.files import write_beside
from mgspmv.kernels.modules import CACHE_VARIABLE, find_folder, report_compiling

_HERE = Path(__file__).parent
_NAMES = ("compiled", "cpu", "csr_cuts", "formats", "lanes", "column_sorted_tiles", "reference")
SOURCES = (_HERE.parent / "model.py", *(_HERE / f"{name}.py" for name in _NAMES))
"""Files whose functions and constants are compiled into functions of other files."""
Types = tuple[Any, ...]
"""Types of arguments: dtype and number of dimensions of an array, class of a number; None and tuples as they are."""

MOST_RESULTS = 4
"""Most numbers that a function returns."""
_LIMIT = 1 << 63
_NUMBERS = {bool: np.dtype(bool), int: np.dtype(np.int64), float: np.dtype(np.float64)} | {
    own: np.dtype(own)
    for own in (np.bool_, *np.sctypeDict.values())
    if np.dtype(own).kind in "biuf" and np.dtype(own).itemsize <= 8
}
"""Dtypes by the class of a number."""
_LIBRARY = frozenset({"memset", "memcpy", "memmove"})
"""Functions that every process has."""
_DIGEST_BYTES = hashlib.sha256().digest_size
_UNRELATED = ("NUMBA_CACHE_DIR", "NUMBA_NUM_THREADS")
"""Settings of Numba that do not change the code."""
_ENTRY = "run"
"""Name of the function in an object file, followed by the kind of its results, and their number."""
_RESULTS: dict[str, Any] = {"i": ctypes.c_int64, "f": ctypes.c_double}
"""Types of results by their kinds."""


def take(counter: Any) -> int:
    """Add 1 to counter[0] atomically and return the old value; only for functions that are compiled."""
    raise NotImplementedError("only compiled functions take a number from a counter")


@functools.cache
def load_numba() -> None:
    """Load Numba, so that it knows `take`, and what it compiles is reported."""
    from numba import types
    from numba.core import event
    from numba.extending import intrinsic, overload

    class Listener(event.Listener):  # type: ignore[misc]
        def on_start(self, event: Any) -> None:
            report_compiling()

        def on_end(self, event: Any) -> None:
            pass

    @intrinsic
    def add(typing_context, counter):
        def generate(context, builder, signature, args):
            array = context.make_array(signature.args[0])(context, builder, args[0])
            one = context.get_constant(types.int64, 1)
            return builder.atomic_rmw("add", array.data, one, "monotonic")

        return types.int64(counter), generate

    event.register("numba:compile", Listener())
    overload(take, inline="always")(lambda counter: lambda counter: add(counter))


def compile_kernel(function: Callable[..., Any]) -> Any:
    """Compile a function in each process that calls it, such as one that other functions call or that allocates."""
    load_numba()
    from numba import njit

    return njit(nogil=True)(function)


# --- files -----------------------------------------------------------------------------------------------------------


@functools.cache
def warn_once() -> None:
    """Warn that compiled functions are not kept."""
    warnings.warn(
        "compiled functions cannot be kept, so every process will compile them; set $NUMBA_CACHE_DIR or "
        f"${CACHE_VARIABLE} to a writable folder",
        stacklevel=4,
    )


@functools.cache
def digest_files(*paths: Path) -> str:
    """Return the SHA-256 of the contents of files."""
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()


@functools.cache
def find_compiled(folder: str) -> Path | None:
    """Return the cache folder for the current state of `SOURCES`; None if none can be written.

    Parameters
    ----------
    folder : $NUMBA_CACHE_DIR; empty if it is not set. The package's own folder and the user's cache follow
    """
    for place in (*([Path(folder)] if folder else []), _HERE / "__pycache__", find_folder() / "numba"):
        with suppress(OSError):
            place.mkdir(parents=True, exist_ok=True)
            if os.access(place, os.W_OK):
                return place / digest_files(*SOURCES)[:16]
    return None


def find_types(args: Sequence[Any]) -> Types | None:
    """Return the types of arguments; None if one of them cannot be passed to machine code."""
    types: list[Any] = []
    for arg in args:
        if isinstance(arg, np.ndarray):
            flags, dtype = arg.flags, arg.dtype
            if not (flags.c_contiguous and flags.aligned and dtype.isnative and dtype.kind in "biuf" and arg.ndim):
                return None
            types.append((dtype, arg.ndim))
        elif arg is None or (isinstance(arg, tuple) and arg and all(type(own) is int for own in arg)):
            types.append(arg)
        elif type(arg) not in _NUMBERS or (type(arg) is int and not -_LIMIT <= arg < _LIMIT):
            return None
        else:
            types.append(type(arg))
    return tuple(types)


def find_code(function: Callable[..., Any], types: Types) -> Callable[..., Any] | None:
    """Return the machine code of a function for arguments of some types, which runs without the GIL.

    It is loaded from its file, or compiled and kept there; None if the function is left to Numba.

    Raises
    ------
    numba.core.errors.NumbaError : the function cannot be compiled for these types
    """
    folder = find_compiled(os.environ.get("NUMBA_CACHE_DIR", ""))
    if folder is None:
        warn_once()
        code = _compile(function, types)
        return None if code is None else _load(code, types)
    path = folder / f"{function.__module__}.{function.__name__}.{_digest(function, types)}.o"
    code = _read(path)
    if code is None:
        code = _compile(function, types)
        with suppress(MgspmvError):  # it is only kept for other processes
            if code is not None:
                with write_beside(path) as part:
                    part.write_bytes(hashlib.sha256(code).digest() + code)
    return None if code is None else _load(code, types)


def _read(path: Path) -> bytes | None:
    """Read an object file, which begins with its digest; None if it is missing or damaged."""
    try:
        digest, code = (data := path.read_bytes())[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    except OSError:
        return None
    return code if hashlib.sha256(code).digest() == digest else None


def _digest(function: Callable[..., Any], types: Types) -> str:
    """Return a digest of all that the code depends on besides `mgspmv.kernels.compiled.SOURCES`."""
    import llvmlite.binding as llvm

    source = digest_files(Path(function.__code__.co_filename))
    settings = sorted(own for own in os.environ.items() if own[0].startswith("NUMBA_") and own[0] not in _UNRELATED)
    facts = source, types, settings, version("numba"), llvm.llvm_version_info, _describe_processor()
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


@functools.cache
def _describe_processor() -> dict[str, str]:
    import llvmlite.binding as llvm

    return {"cpu": llvm.get_host_cpu_name(), "features": llvm.get_host_cpu_features().flatten()}


def _make_target() -> Any:
    """Return LLVM's machine of this processor for code in memory; an engine takes possession of it."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(**_describe_processor(), opt=3, codemodel="jitdefault", jit=True)


# --- loading ---------------------------------------------------------------------------------------------------------


def _load(code: bytes, types: Types) -> Callable[..., Any]:
    """Return the function of an object file, for arguments of the types that it was compiled for."""
    import llvmlite.binding as llvm

    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _make_target())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    forms = [(kind, n) for kind in _RESULTS for n in range(MOST_RESULTS + 1)]
    found = {form: engine.get_function_address(f"{_ENTRY}{form[0]}{form[1]}") for form in forms}
    [((kind, n_results), address)] = [own for own in found.items() if own[1]]
    of_results = _RESULTS[kind] * MOST_RESULTS
    passed = [own for each in types for own in _list_ctypes(each)]
    run = ctypes.CFUNCTYPE(None, *passed, ctypes.c_void_p)(address)

    def call(*args: Any) -> Any:
        own: list[Any] = []
        for arg in args:
            if isinstance(arg, np.ndarray):
                own += arg.ctypes.data, *arg.shape
            elif arg is not None and not isinstance(arg, tuple):
                own.append(arg.item() if isinstance(arg, np.generic) else arg)
        results = of_results()
        run(*own, ctypes.addressof(results))
        return None if n_results == 0 else results[0] if n_results == 1 else tuple(results[:n_results])

    call.engine = engine  # type: ignore[attr-defined]  # which owns the code
    return call


def _list_ctypes(type: Any) -> list[Any]:
    if _is_constant(type):
        return []
    dtype, n_axes = _split_type(type)
    own = ctypes.c_void_p if n_axes else np.ctypeslib.as_ctypes_type(dtype)
    return [own, *[ctypes.c_int64] * n_axes]


def _is_constant(type: Any) -> bool:
    return type is None or (isinstance(type, tuple) and not isinstance(type[0], np.dtype))


def _split_type(type: Any) -> tuple[np.dtype[Any], int]:
    """Return dtype and number of dimensions, 0 for a number."""
    return type if isinstance(type, tuple) else (_NUMBERS[type], 0)


# --- compiling -------------------------------------------------------------------------------------------------------


def _compile(function: Callable[..., Any], types: Types) -> bytes | None:
    """Return the object file of a function; None if the function is left to Numba."""
    load_numba()
    from numba import cfunc, config, from_dtype, njit
    from numba import types as of_numba

    if config.DISABLE_JIT:
        return None
    inner = njit(nogil=True, error_model="numpy")(function)  # without errors for divisions by zero
    own_types, passed, names, values = list[Any](), list[Any](), list[str](), list[str]()
    for k, each in enumerate(types):
        if _is_constant(each):
            # Literals, as in the text below; Numba would compile the function again for other types.
            own_types.append(of_numba.none if each is None else of_numba.Tuple([of_numba.literal(own) for own in each]))
            values.append(repr(each))
            continue
        dtype, n_axes = _split_type(each)
        own, shape = from_dtype(dtype), [f"n{k}_{axis}" for axis in range(n_axes)]
        if n_axes:
            own_types.append(of_numba.Array(own, n_axes, "C"))
            passed += of_numba.CPointer(own), *[of_numba.int64] * n_axes
            values.append(f"carray(a{k}, ({', '.join(shape)},))")
            names += f"a{k}", *shape
        else:
            own_types.append(own)
            passed.append(own)
            values.append(f"a{k}")
            names.append(f"a{k}")
    inner.compile(tuple(own_types))
    result = inner.nopython_signatures[0].return_type
    found = [] if result == of_numba.none else list(result) if isinstance(result, of_numba.BaseTuple) else [result]
    are_integers = all(isinstance(own, of_numba.Integer) and own != of_numba.uint64 for own in found)
    kind = "i" if are_integers else "f" if set(found) == {of_numba.float64} else ""
    if len(found) > MOST_RESULTS or not kind:
        return None
    of_results = of_numba.float64 if kind == "f" else of_numba.int64
    kept = [f"results[{k}] = found{f'[{k}]' if len(found) > 1 else ''}" for k in range(len(found))]
    text = "\n    ".join([f"def run({', '.join([*names, 'results'])}):", f"found = inner({', '.join(values)})", *kept])
    place: dict[str, Any] = {"inner": inner}
    exec(f"from numba import carray\n{text}", place)
    entry = cfunc(of_numba.void(*passed, of_numba.CPointer(of_results)))(place["run"])
    return _emit(entry.inspect_llvm(), entry.native_name, f"{_ENTRY}{kind}{len(found)}")


def _emit(text: str, name: str, new_name: str) -> bytes | None:
    """Return the object file of one of the functions of LLVM IR; None if the function needs another one."""
    import llvmlite.binding as llvm

    module = llvm.parse_assembly(text)
    for own in (*module.functions, *module.global_variables):
        if own.name == name:
            own.name = new_name
        elif not own.is_declaration:
            own.linkage = "internal"
    target = _make_target()
    passes = llvm.create_pass_builder(target, llvm.create_pipeline_tuning_options(speed_level=2))
    passes.getModulePassManager().run(module, passes)
    outside = [own.name for own in (*module.functions, *module.global_variables) if own.is_declaration]
    if any(name not in _LIBRARY and not name.startswith("llvm.") for name in outside):
        return None
    return bytes(target.emit_object(module))


class CompiledLater:
    """A function that is compiled when it is first called, once for all arguments of the same types.

    Parameters
    ----------
    limit : items, in all calls of this process, that are left to other code before it is worth compiling
    """

    pays: ClassVar[bool] = False
    """Whether this process has an input so large that all functions are worth compiling."""

    def __init__(self, function: Callable[..., Any], limit: int) -> None:
        functools.update_wrapper(self, function)
        self._function, self._limit, self._n_items = function, limit, 0
        self._codes: dict[Types | None, Callable[..., Any]] = {}
        self._lock = Lock()

    def __call__(self, *args: Any) -> Any:
        types = find_types(args)
        if types not in self._codes:  # asked without the lock, for which many threads would wait
            with self._lock:
                if types not in self._codes:
                    code = None if types is None else find_code(self._function, types)
                    self._codes[types] = code or self._by_numba
        return self._codes[types](*args)

    @functools.cached_property
    def _by_numba(self) -> Callable[..., Any]:
        compiled: Callable[..., Any] = compile_kernel(self._function)
        return compiled

    @property
    def signatures(self) -> tuple[Types | None, ...]:
        """Types of arguments for which there is code; None for all that are left to Numba."""
        return tuple(self._codes)

    def is_worth(self, n: int) -> bool:
        """Count n items more, and return whether to call this for them, rather than other code."""
        if CompiledLater.pays:
            return True
        with self._lock:
            self._n_items += n
            return self._n_items > self._limit


def compile_later(limit: int = 0) -> Callable[[Callable[..., Any]], CompiledLater]:
    """Decorate a function with `CompiledLater`."""
    return lambda function: CompiledLater(function, limit)
