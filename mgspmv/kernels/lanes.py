"""Several numbers in vector registers as one Numba value, for the kernels of many vectors; sums of rows of them,
and products.

`Lanes(dtype, width)` is LLVM's `<width x dtype>`, which the compiler maps to as many registers as needed. Arithmetic
and comparisons are elementwise, with other lanes or with one number for all lanes. Nothing is contracted or reordered:
each lane is bit-identical to a scalar.

A width is given as a tuple of that length, which is part of its type.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, lower_builtin, models, overload, register_model, type_callable

from mgspmv.kernels.compiled import compile_kernel, compile_later, take
from mgspmv.kernels.host import run_parts
from mgspmv.kernels.operands import fit_width

CACHE_LINE = 64
"""Bytes of a cache line."""
AHEAD = 32
"""Distance, in entries, from the one being added to the one whose row of z is prefetched."""
COLUMNS_AT_ONCE = 16
"""Maximum columns of x per product: if rows of x are wider, fewer of those that are read often fit in the caches."""


class Lanes(types.Type):  # type: ignore[misc]
    """Numba type of `width` numbers of one type."""

    def __init__(self, dtype: Any, width: int) -> None:
        self.dtype, self.width = dtype, width
        super().__init__(name=f"Lanes({dtype}, {width})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager, lanes):
        super().__init__(manager, lanes, _vector_of(lanes))


_ELEMENTS = {
    types.float32: ir.FloatType(),
    types.float64: ir.DoubleType(),
    types.int64: ir.IntType(64),
    types.boolean: ir.IntType(1),
}


def _vector_of(lanes):
    return ir.VectorType(_ELEMENTS[lanes.dtype], lanes.width)


# --- memory ----------------------------------------------------------------------------------------------------------


@intrinsic
def load(typing_context, array, row, width):
    """Load array[row, 0:len(width)] as lanes; array[0:len(width)] if row is None."""
    lanes = Lanes(array.dtype, len(width))

    def generate(context, builder, signature, args):
        pointer = _find_row(context, builder, signature, args)
        return builder.load(builder.bitcast(pointer, _vector_of(lanes).as_pointer()), align=_align_of(lanes))

    return lanes(array, row, width), generate


@intrinsic
def store(typing_context, array, row, lanes):
    """Set array[row, 0:width] = lanes."""

    def generate(context, builder, signature, args):
        pointer = _find_row(context, builder, signature, args)
        builder.store(args[2], builder.bitcast(pointer, args[2].type.as_pointer()), align=_align_of(lanes))
        return context.get_dummy_value()

    return types.void(array, row, lanes), generate


@intrinsic
def prefetch(typing_context, array, row, width):
    """Prefetch array[row, 0:len(width)] into the cache; the row must exist."""
    n_bytes = len(width) * array.dtype.bitwidth // 8

    def generate(context, builder, signature, args):
        byte, int32 = ir.IntType(8), ir.IntType(32)
        called = ir.FunctionType(ir.VoidType(), [byte.as_pointer(), int32, int32, int32])
        hint = _declare(builder, called, "llvm.prefetch.p0i8")
        first = builder.bitcast(_find_row(context, builder, signature, args), byte.as_pointer())
        for offset in range(0, n_bytes, CACHE_LINE):
            place = builder.gep(first, [int32(offset)])
            builder.call(hint, [place, int32(0), int32(3), int32(1)])  # read, high locality, data cache
        return context.get_dummy_value()

    return types.void(array, row, width), generate


def _find_row(context, builder, signature, args):
    """Return a pointer to the first element of a row of an array."""
    array = context.make_array(signature.args[0])(context, builder, args[0])
    if isinstance(signature.args[1], types.NoneType):
        return array.data
    row = context.cast(builder, args[1], signature.args[1], types.intp)
    start = builder.bitcast(array.data, ir.IntType(8).as_pointer())
    place = builder.gep(start, [builder.mul(row, builder.extract_value(array.strides, 0))])
    return builder.bitcast(place, array.data.type)


def _align_of(lanes):
    return lanes.dtype.bitwidth // 8


# --- conversion ------------------------------------------------------------------------------------------------------


@intrinsic
def spread(typing_context, number, width):
    """Broadcast a number to every lane."""
    lanes = Lanes(types.unliteral(number), len(width))

    def generate(context, builder, signature, args):
        return _spread(builder, args[0], lanes.width)

    return lanes(number, width), generate


@intrinsic
def to_float64(typing_context, lanes):
    """Convert lanes of float32, float64 or int64 to float64."""
    wide = Lanes(types.float64, lanes.width)

    def generate(context, builder, signature, args):
        if lanes.dtype == types.float64:
            return args[0]
        convert = {types.float32: builder.fpext, types.int64: builder.sitofp}[lanes.dtype]
        return convert(args[0], _vector_of(wide))

    return wide(lanes), generate


@intrinsic
def to_type_of(typing_context, lanes, array):
    """Convert float64 lanes to the type of an array's elements, rounding to nearest even."""
    wanted = Lanes(array.dtype, lanes.width)

    def generate(context, builder, signature, args):
        if array.dtype == types.float64:
            return args[0]
        if array.dtype == types.float32:
            return builder.fptrunc(args[0], _vector_of(wanted))
        return builder.fptosi(_call(builder, "rint", args[0]), _vector_of(wanted))

    return wanted(lanes, array), generate


@intrinsic
def to_integer(typing_context, lanes):
    """Convert lanes to int64: float64 rounded to nearest even, truth values to 0 and 1."""
    wanted = Lanes(types.int64, lanes.width)

    def generate(context, builder, signature, args):
        if lanes.dtype == types.boolean:
            return builder.zext(args[0], _vector_of(wanted))
        return builder.fptosi(_call(builder, "rint", args[0]), _vector_of(wanted))

    return wanted(lanes), generate


@intrinsic
def magnitude(typing_context, lanes):
    """Return |lanes|, of float64."""

    def generate(context, builder, signature, args):
        return _call(builder, "fabs", args[0])

    return lanes(lanes), generate


@intrinsic
def choose(typing_context, is_first, first, second):
    """Select lanes of `first` where `is_first` holds, of `second` elsewhere."""

    def generate(context, builder, signature, args):
        return builder.select(*args)

    return first(is_first, first, second), generate


@intrinsic
def replace_lane(typing_context, lanes, place, number):
    """Return lanes with a number of their type at one place."""

    def generate(context, builder, signature, args):
        return builder.insert_element(args[0], args[2], args[1])

    return lanes(lanes, place, number), generate


def _call(builder, name, vector):
    called = ir.FunctionType(vector.type, [vector.type])
    return builder.call(_declare(builder, called, f"llvm.{name}.v{vector.type.count}f64"), [vector])


def _declare(builder, called, name):
    """Declare an intrinsic of LLVM in the module, once."""
    return builder.module.globals.get(name) or ir.Function(builder.module, called, name)


def _spread(builder, value, width):
    one = builder.insert_element(ir.Constant(ir.VectorType(value.type, width), ir.Undefined), value, ir.IntType(32)(0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(ir.IntType(32), width), [0] * width))


# --- arithmetic ------------------------------------------------------------------------------------------------------


def _define(operation, emitters, result=None):
    """Define `operation` for two Lanes of one type, or Lanes and a number of that type.

    Parameters
    ----------
    emitters : functions of (builder, first, second) that emit the instruction, by type of the elements
    result : type of the result's elements; default: the same
    """

    @type_callable(operation)
    def choose_types(typing_context):
        def choose_types_of(first, second):
            args = (first, second)
            lanes = next((a for a in args if isinstance(a, Lanes)), None)
            if lanes is None or lanes.dtype not in emitters or any(isinstance(a, Lanes) and a != lanes for a in args):
                return None
            taken = [lanes if isinstance(a, Lanes) else lanes.dtype for a in args]
            return Lanes(result or lanes.dtype, lanes.width)(*taken)

        return choose_types_of

    def lower(context, builder, signature, args):
        lanes = next(t for t in signature.args if isinstance(t, Lanes))
        pairs = zip(signature.args, args, strict=True)
        vectors = [v if isinstance(t, Lanes) else _spread(builder, v, lanes.width) for t, v in pairs]
        return emitters[lanes.dtype](builder, *vectors)

    for pair in ((Lanes, Lanes), (Lanes, types.Number), (types.Number, Lanes)):
        lower_builtin(operation, *pair)(lower)


def _emit_all(float_name, integer_name=None):
    """Return emitters of the builder's instructions of these names, by type of the elements."""
    emitters = {t: lambda b, x, y: getattr(b, float_name)(x, y) for t in (types.float32, types.float64)}
    return emitters | ({types.int64: lambda b, x, y: getattr(b, integer_name)(x, y)} if integer_name else {})


def _emit_comparison(sign):
    return {
        types.float64: lambda b, x, y: b.fcmp_ordered(sign, x, y),
        types.int64: lambda b, x, y: b.icmp_signed(sign, x, y),
    }


_define(operator.add, _emit_all("fadd", "add"))
_define(operator.sub, _emit_all("fsub", "sub"))
_define(operator.mul, _emit_all("fmul"))
_define(operator.truediv, _emit_all("fdiv"))
_define(operator.le, _emit_comparison("<="), types.boolean)
_define(operator.ge, _emit_comparison(">="), types.boolean)
_define(operator.lt, _emit_comparison("<"), types.boolean)
_define(operator.gt, _emit_comparison(">"), types.boolean)
_define(operator.and_, {types.boolean: lambda b, x, y: b.and_(x, y)})


# --- sums of rows -----------------------------------------------------------------------------------------------------


def zeros_in_lines(n: int, width: int, dtype: Any) -> np.ndarray:
    """Return (n, width) zeros aligned to a cache line, so that no row of 64 bytes spans two."""
    n_bytes = n * width * np.dtype(dtype).itemsize
    memory = np.zeros(n_bytes + CACHE_LINE, np.uint8)
    first = -memory.ctypes.data % CACHE_LINE
    zeros: np.ndarray = memory[first : first + n_bytes].view(dtype).reshape(n, width)
    return zeros


def _contribute_many(data, k, zj, zero):
    """Return the terms that entry k adds to the sums of its row, in the type of `zero`."""


@overload(_contribute_many, inline="always")
def _contribute_many_overload(data, k, zj, zero):
    is_integer = zero.dtype == types.int64
    if isinstance(data, types.NoneType):
        return (lambda data, k, zj, zero: zj) if is_integer else (lambda data, k, zj, zero: to_float64(zj))
    if is_integer:
        return lambda data, k, zj, zero: to_integer(data[k] * zj)
    return lambda data, k, zj, zero: to_float64(zj * data[k])


@compile_kernel
def sum_row_many(indices, data, z, start, stop, zero, width):
    """Sum the entries of a row in order, from `zero` on, with one lane per column of z (n_cols, width)."""
    total = zero
    last = np.uint64(len(indices) - 1)
    for k in range(np.uint64(start), np.uint64(stop)):
        prefetch(z, np.uint64(indices[min(k + np.uint64(AHEAD), last)]), width)
        total = total + _contribute_many(data, k, load(z, np.uint64(indices[k]), width), zero)
    return total


@compile_later()
def _multiply_many(counter, bounds, indptr, indices, data, x, y, alpha, beta, width):
    none = spread(0.0, width)
    part = take(counter)
    while part < len(bounds) - 1:
        for i in range(np.uint64(bounds[part]), np.uint64(bounds[part + 1])):
            total = alpha * sum_row_many(indices, data, x, indptr[i], indptr[i + np.uint64(1)], none, width)
            if beta != 0.0:
                total = total + beta * to_float64(load(y, i, width))
            store(y, i, to_type_of(total, y))
        part = take(counter)


def multiply_vectors(
    threads: int, bounds: np.ndarray, csr: tuple[Any, ...], x: np.ndarray, y: np.ndarray, alpha: float, beta: float
) -> None:
    """Compute y = alpha A x + beta y in place for x (n_cols, k) and y (n_rows, k), several columns at a time.

    Their copies have a width that the kernel is compiled for, and rows that do not straddle cache lines.

    Parameters
    ----------
    bounds : rows where parts begin, for `run_parts`
    csr : indptr, indices and data of the block
    """
    for first in range(0, x.shape[1], COLUMNS_AT_ONCE):
        columns = slice(first, first + COLUMNS_AT_ONCE)
        own_x, own_y = x[:, columns], y[:, columns]
        n_columns = own_x.shape[1]
        width = fit_width(n_columns)
        lined_x, lined_y = (zeros_in_lines(len(v), width, v.dtype) for v in (own_x, own_y))
        lined_x[:, :n_columns] = own_x
        if beta != 0:
            lined_y[:, :n_columns] = own_y
        run_parts(threads, _multiply_many, bounds, *csr, lined_x, lined_y, alpha, beta, (0,) * width)
        own_y[:] = lined_y[:, :n_columns]
