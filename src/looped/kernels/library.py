"""Matmuls by the fastest algorithm that cuBLASLt has for their shape.

cuBLASLt lists algorithms in the order of its own estimate, and PyTorch runs the first one. On an H200 the best of 16 is
4 to 16 % faster at width 768. The first call of a shape times them all, and PyTorch's own call with them. Algorithms
whose result is not PyTorch's within rounding are left out. The library is called through ctypes, because PyTorch has no
way to choose an algorithm.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

MIN_WIDTH, MIN_TOKENS = 512, 2**13
"""smallest matmul that is timed; smaller ones gain nothing"""
TOLERANCE = 1e-2
"""largest relative distance from PyTorch's result"""
ALGORITHMS, TRIALS = 16, 5
"""how many algorithms are timed, and how often each runs"""

# Constants of cublasLt.h and library_types.h.
_TYPES = {torch.bfloat16: 14, torch.float32: 0}
_COMPUTE_FLOAT32 = 68
_TRANSPOSE_A, _TRANSPOSE_B, _EPILOGUE, _BIAS_POINTER, _BIAS_TYPE = 3, 4, 7, 8, 26
_EPILOGUE_BIAS, _MAX_WORKSPACE, _BATCH_COUNT, _BATCH_STRIDE = 4, 1, 5, 6
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
    """The key to the fastest algorithm: a batch of matmuls (rows, inner) by (inner, columns)."""

    batch: int
    rows: int
    inner: int
    columns: int
    left_transposed: bool
    """True if the left factor is stored as (inner, rows)"""
    right_transposed: bool
    """True if the right factor is stored as (columns, inner)"""
    biased: bool
    result: torch.dtype
    device: torch.device


def product(
    left: Tensor, right: Tensor, bias: Tensor | None = None, *, transposed: bool, out: Tensor | None = None
) -> Tensor:
    """Return left (tokens, inner) @ right (inner, columns) + bias; with `transposed`, right is (columns, inner)."""
    (tokens, inner), columns = left.shape, right.shape[0 if transposed else 1]
    shape = _Shape(1, tokens, inner, columns, False, transposed, bias is not None, left.dtype, left.device)
    large = min(right.shape) >= MIN_WIDTH and tokens >= MIN_TOKENS
    chosen = _chosen(shape) if large and _usable(left, right, bias, out) else None
    if chosen is None:
        factor = right.T if transposed else right
        return torch.mm(left, factor, out=out) if bias is None else torch.addmm(bias, left, factor, out=out)
    out = left.new_empty(tokens, columns) if out is None else out
    chosen(left, right, bias, out)
    return out


def products_over_tokens(left: Tensor, right: Tensor) -> Tensor:
    """Return left^T @ right in float32, for left (batch, tokens, rows) and right (batch, tokens, columns)."""
    (batch, tokens, rows), columns = left.shape, right.shape[2]
    if not left.is_cuda or left.dtype != torch.bfloat16:
        return left.float().transpose(1, 2) @ right.float()
    shape = _Shape(batch, rows, tokens, columns, True, False, False, torch.float32, left.device)
    large = min(rows, columns) >= MIN_WIDTH and batch * tokens >= MIN_TOKENS
    chosen = _chosen(shape) if large and _usable(left, right) else None
    if chosen is None:
        return torch.bmm(left.transpose(1, 2), right, out_dtype=torch.float32)
    out = torch.empty(batch, rows, columns, dtype=torch.float32, device=left.device)
    chosen(left, right, None, out)
    return out


def _usable(*given: Tensor | None) -> bool:
    """Return whether all tensors are on a GPU, in bfloat16 and contiguous."""
    there = [each for each in given if each is not None]
    return all(each.is_cuda and each.dtype == torch.bfloat16 and each.is_contiguous() for each in there)


_matmuls: dict[_Shape, "_Matmul | None"] = {}
_may_time: ContextVar[bool] = ContextVar("may_time", default=True)


@contextmanager
def without_timing() -> Iterator[None]:
    """Time no new shapes inside this block, because they will seldom come back."""
    before = _may_time.set(False)
    try:
        yield
    finally:
        _may_time.reset(before)


def _chosen(shape: _Shape) -> "_Matmul | None":
    """Return the matmul with its fastest algorithm, or None if PyTorch is faster or cuBLASLt cannot be called."""
    if shape not in _matmuls:
        # Nothing can be timed during a capture.
        if not _may_time.get() or torch.cuda.is_current_stream_capturing():
            return None
        try:
            _matmuls[shape] = _fastest(shape)
        except (OSError, AttributeError, RuntimeError):  # no such library, or another interface
            _matmuls[shape] = None
    return _matmuls[shape]


def _fastest(shape: _Shape) -> "_Matmul | None":
    """Time PyTorch and all algorithms on random factors, with nothing else on the GPU."""
    torch.cuda.synchronize(shape.device)
    options = {"dtype": torch.bfloat16, "device": shape.device}
    sizes = (shape.inner, shape.rows) if shape.left_transposed else (shape.rows, shape.inner)
    left = torch.randn(shape.batch, *sizes, **options)
    sizes = (shape.columns, shape.inner) if shape.right_transposed else (shape.inner, shape.columns)
    right = torch.randn(shape.batch, *sizes, **options)
    out = torch.empty(shape.batch, shape.rows, shape.columns, dtype=shape.result, device=shape.device)
    bias = torch.randn(shape.columns, **options) if shape.biased else None
    wanted = _sample(_by_pytorch(shape, left, right, bias))
    least, fastest = _milliseconds(partial(_by_pytorch, shape, left, right, bias)), None
    matmul = _Matmul(shape)
    for algorithm in matmul.algorithms():
        matmul.algorithm = algorithm
        milliseconds = _milliseconds(partial(matmul, left, right, bias, out.fill_(torch.nan)))
        if milliseconds < least and float((_sample(out) - wanted).norm() / wanted.norm()) < TOLERANCE:
            least, fastest = milliseconds, algorithm
    matmul.algorithm = fastest
    return None if fastest is None else matmul


def _sample(result: Tensor) -> Tensor:
    """Return about 64 rows of each result of a batch."""
    return result[..., :: max(1, result.shape[-2] // 64), :].float()


def _by_pytorch(shape: _Shape, left: Tensor, right: Tensor, bias: Tensor | None) -> Tensor:
    left = left.transpose(1, 2) if shape.left_transposed else left
    right = right.transpose(1, 2) if shape.right_transposed else right
    if bias is not None:
        return torch.addmm(bias, left[0], right[0])[None]
    if shape.result == torch.float32:
        return torch.bmm(left, right, out_dtype=torch.float32)
    return torch.mm(left[0], right[0])[None]


class _Matmul:
    """A cuBLASLt matmul. The library stores matrices by column, so its A is our right factor and its B our left one."""

    def __init__(self, shape: _Shape) -> None:
        batch, rows, inner, columns, left_transposed, right_transposed, biased, result, device = shape
        self.library, self.handle = _library(), _handle(device)
        self.descriptor = _made(self.library.cublasLtMatmulDescCreate, _COMPUTE_FLOAT32, 0)
        self._set(_TRANSPOSE_A, ctypes.c_int32(right_transposed))
        self._set(_TRANSPOSE_B, ctypes.c_int32(left_transposed))
        if biased:
            self._set(_EPILOGUE, ctypes.c_uint32(_EPILOGUE_BIAS))
            self._set(_BIAS_TYPE, ctypes.c_int32(_TYPES[torch.bfloat16]))
        a = (inner, columns) if right_transposed else (columns, inner)
        b = (rows, inner) if left_transposed else (inner, rows)
        factors = [_layout(self.library, torch.bfloat16, batch, *sizes) for sizes in (a, b)]
        self.layouts = [*factors, _layout(self.library, result, batch, columns, rows)]
        self.algorithm: Any = None

    def __call__(self, left: Tensor, right: Tensor, bias: Tensor | None, out: Tensor) -> None:
        if bias is not None:
            self._set(_BIAS_POINTER, ctypes.c_void_p(bias.data_ptr()))
        one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        a, b, c = (ctypes.c_void_p(each.data_ptr()) for each in (right, left, out))
        of_a, of_b, of_c = self.layouts
        stream = ctypes.c_void_p(torch.cuda.current_stream(out.device).cuda_stream)
        _check(
            self.library.cublasLtMatmul(
                self.handle, self.descriptor, ctypes.byref(one), a, of_a, b, of_b, ctypes.byref(zero), c, of_c, c, of_c,
                ctypes.byref(self.algorithm), None, ctypes.c_size_t(0), stream,
            )
        )  # fmt: skip

    def algorithms(self) -> list[Any]:
        """Return the algorithms that need no workspace, because streams side by side would share it."""
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
        return [found[place].algorithm for place in range(count.value)]

    def _set(self, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        _check(self.library.cublasLtMatmulDescSetAttribute(self.descriptor, attribute, ctypes.byref(value), size))


def _milliseconds(run: Callable[[], object]) -> float:
    """Return the time of a call after a warm-up, averaged over calls in a row; infinity if the library refuses."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    try:
        run()
        start.record()
        for _ in range(TRIALS):
            run()
        end.record()
        end.synchronize()
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return float("inf")
    return start.elapsed_time(end) / TRIALS


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


def _layout(library: ctypes.CDLL, dtype: torch.dtype, batch: int, rows: int, columns: int) -> ctypes.c_void_p:
    sizes = ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows)
    layout = _made(library.cublasLtMatrixLayoutCreate, _TYPES[dtype], *sizes)
    for attribute, value in ((_BATCH_COUNT, ctypes.c_int32(batch)), (_BATCH_STRIDE, ctypes.c_int64(rows * columns))):
        size = ctypes.c_size_t(ctypes.sizeof(value))
        _check(library.cublasLtMatrixLayoutSetAttribute(layout, attribute, ctypes.byref(value), size))
    return layout


def _check(status: int) -> None:
    if status != 0:
        raise RuntimeError(f"cuBLASLt status {status}")
