"""Matrix products by the fastest algorithm that the library has for their shape.

cuBLASLt lists algorithms for a product in the order of its guess, and PyTorch runs the first. On an H200 the best of 16
is 4 to 16 % faster at width 768. The first call of a shape times them all; the library is called through ctypes, for
PyTorch does not let one choose.
"""

import ctypes
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

LEAST_WIDTH, LEAST_TOKENS = 512, 2**13
"""of products that are worth a choice; smaller ones gain nothing"""
ALGORITHMS, TRIALS = 16, 5
"""how many are timed, and how often each"""

# cublasLt.h and library_types.h
_BFLOAT16, _FLOAT32, _COMPUTE_FLOAT32 = 14, 0, 68
_TRANSPOSE_A, _EPILOGUE, _BIAS_POINTER, _BIAS_TYPE = 3, 7, 8, 26
_EPILOGUE_BIAS, _MAX_WORKSPACE = 4, 1
_SONAMES = ("libcublasLt.so.13", "libcublasLt.so.12")


class _Choice(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t"""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class _Shape(NamedTuple):
    """The properties of a product that decide which algorithm is fastest."""

    tokens: int
    inner: int
    columns: int
    transposed: bool
    """whether the right factor is stored as (columns, inner)"""
    biased: bool
    device: torch.device


def product(
    left: Tensor, right: Tensor, bias: Tensor | None = None, *, transposed: bool, out: Tensor | None = None
) -> Tensor:
    """Return left (tokens, inner) times right (inner, columns), or its transpose (columns, inner), plus a bias."""
    columns = right.shape[0 if transposed else 1]
    shape = _Shape(len(left), left.shape[1], columns, transposed, bias is not None, left.device)
    chosen = _chosen(shape) if _is_worth_it(left, right, bias) else None
    if chosen is None:
        factor = right.T if transposed else right
        return torch.mm(left, factor, out=out) if bias is None else torch.addmm(bias, left, factor, out=out)
    out = left.new_empty(len(left), columns) if out is None else out
    chosen(left, right, bias, out)
    return out


def _is_worth_it(left: Tensor, right: Tensor, bias: Tensor | None) -> bool:
    large = left.is_cuda and min(right.shape) >= LEAST_WIDTH and len(left) >= LEAST_TOKENS
    given = (left, right) if bias is None else (left, right, bias)
    return large and all(each.dtype == torch.bfloat16 and each.is_contiguous() for each in given)


_products: dict[_Shape, "_Product | None"] = {}


def _chosen(shape: _Shape) -> "_Product | None":
    """Return the product of this shape by its fastest algorithm; None where the library cannot be asked."""
    if shape not in _products:
        if torch.cuda.is_current_stream_capturing():
            return None  # nothing can be timed now
        try:
            _products[shape] = _Product(shape)
        except (OSError, AttributeError, RuntimeError):  # no such library, or one that is called otherwise
            _products[shape] = None
    return _products[shape]


class _Product:
    """out = left right + bias. The library counts matrices by columns, so it computes the transpose: A is the right
    factor and B the left one."""

    def __init__(self, shape: _Shape) -> None:
        tokens, inner, columns, transposed, biased, device = shape
        self.library, self.handle = _library(), _handle(device)
        self.descriptor = _made(self.library.cublasLtMatmulDescCreate, _COMPUTE_FLOAT32, _FLOAT32)
        self._set(_TRANSPOSE_A, ctypes.c_int32(transposed))
        if biased:
            self._set(_EPILOGUE, ctypes.c_uint32(_EPILOGUE_BIAS))
            self._set(_BIAS_TYPE, ctypes.c_int32(_BFLOAT16))
        right = (inner, columns) if transposed else (columns, inner)
        self.layouts = [_layout(self.library, *each) for each in (right, (inner, tokens), (columns, tokens))]
        self.algorithm = self._fastest(shape)

    def __call__(self, left: Tensor, right: Tensor, bias: Tensor | None, out: Tensor) -> None:
        if bias is not None:
            self._set(_BIAS_POINTER, ctypes.c_void_p(bias.data_ptr()))
        self._run(left, right, out, self.algorithm)

    def _run(self, left: Tensor, right: Tensor, out: Tensor, algorithm: Any) -> None:
        one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        a, b, c = (ctypes.c_void_p(each.data_ptr()) for each in (right, left, out))
        of_a, of_b, of_c = self.layouts
        stream = ctypes.c_void_p(torch.cuda.current_stream(out.device).cuda_stream)
        _check(
            self.library.cublasLtMatmul(
                self.handle, self.descriptor, ctypes.byref(one), a, of_a, b, of_b, ctypes.byref(zero), c, of_c, c, of_c,
                ctypes.byref(algorithm), None, ctypes.c_size_t(0), stream,
            )
        )  # fmt: skip

    def _set(self, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        _check(self.library.cublasLtMatmulDescSetAttribute(self.descriptor, attribute, ctypes.byref(value), size))

    def _fastest(self, shape: _Shape) -> Any:
        """Time the algorithms that need no memory of their own: streams side by side would share it."""
        preference = _made(self.library.cublasLtMatmulPreferenceCreate)
        none = ctypes.c_uint64(0)
        set_preference = self.library.cublasLtMatmulPreferenceSetAttribute
        _check(set_preference(preference, _MAX_WORKSPACE, ctypes.byref(none), ctypes.c_size_t(8)))
        found, count = (_Choice * ALGORITHMS)(), ctypes.c_int()
        of_a, of_b, of_c = self.layouts
        _check(
            self.library.cublasLtMatmulAlgoGetHeuristic(
                self.handle, self.descriptor, of_a, of_b, of_c, of_c, preference, ALGORITHMS, found, ctypes.byref(count)
            )
        )
        options = {"dtype": torch.bfloat16, "device": shape.device}
        left, right = (
            torch.randn(shape.tokens, shape.inner, **options),
            torch.randn(shape.inner, shape.columns, **options),
        )
        out, bias = torch.empty(shape.tokens, shape.columns, **options), torch.zeros(shape.columns, **options)
        if shape.biased:
            self._set(_BIAS_POINTER, ctypes.c_void_p(bias.data_ptr()))
        runs = [partial(self._run, left, right, out, found[place].algorithm) for place in range(count.value)]
        times = [_milliseconds(run) for run in runs]
        if not times:
            raise RuntimeError("no algorithm")
        return found[min(range(len(times)), key=times.__getitem__)].algorithm


def _milliseconds(run: Any) -> float:
    """Return the shortest of several runs, or infinity where the library refuses."""
    times = []
    try:
        for _ in range(TRIALS):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            run()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
    except RuntimeError:
        return float("inf")
    return min(times)


@cache
def _library() -> ctypes.CDLL:
    for name in _SONAMES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise OSError("no cuBLASLt")


@cache
def _handle(_device: torch.device) -> ctypes.c_void_p:
    return _made(_library().cublasLtCreate)


def _made(create: Any, *args: Any) -> ctypes.c_void_p:
    made = ctypes.c_void_p()
    _check(create(ctypes.byref(made), *args))
    return made


def _layout(library: ctypes.CDLL, rows: int, columns: int) -> ctypes.c_void_p:
    sizes = ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows)
    return _made(library.cublasLtMatrixLayoutCreate, _BFLOAT16, *sizes)


def _check(status: int) -> None:
    if status != 0:
        raise RuntimeError(f"cuBLASLt status {status}")
