"""Gluon kernels on a CPU: an emulator that is as unkind as the GPU may be.

Partitions are threads. Copies arrive late and leave late, products are computed at the last wait that allows it, and
shared memory starts as NaN, as does the target of a copy under way. So a missing wait, a wrong phase, a buffer that is
released too early and a deadlock show up as wrong numbers or as errors. The emulator knows neither layouts nor memory
fences: the compiler checks the former (`test_gluon_compiles.py`), and only a GPU the latter.
"""

import importlib.util
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import torch
from torch import Tensor

PATIENCE = 20.0
"""seconds until a wait counts as a deadlock"""
LATEST = 0.001
"""seconds that a copy takes at most"""
LOCAL = threading.local()
"""of each partition: its program, and what it has under way"""


class Layout:
    """Any layout: all of them hold the same numbers."""

    def __init__(self, *_args, **_options) -> None:
        pass

    @staticmethod
    def get_default_for(*_args, **_options) -> "Layout":
        return Layout()


class Descriptor:
    """A tensor that boxes are copied from and to; what lies outside reads as zero and is not written."""

    def __init__(self, base: Tensor, block_shape: list[int]) -> None:
        self.base, self.block_shape, self.layout = base, block_shape, Layout()

    @classmethod
    def from_tensor(cls, tensor: Tensor, block_shape: list[int], _layout: Layout) -> "Descriptor":
        assert tensor.is_contiguous()
        assert tensor.data_ptr() % 16 == 0
        assert tensor.dim() == len(block_shape) == 2
        return cls(tensor, block_shape)

    def inside(self, corner) -> tuple[Tensor, int, int]:
        """Return the part of the tensor that a box covers, and its size."""
        rows, columns = (max(0, min(size, int(at) + box) - int(at)) for size, at, box in self._axes(corner))
        top, left = (int(at) for at in corner)
        return self.base[top : top + rows, left : left + columns], rows, columns

    def _axes(self, corner):
        return zip(self.base.shape, corner, self.block_shape, strict=True)


class Shared:
    """Shared memory, or a view of some."""

    def __init__(self, data: Tensor) -> None:
        self.data = data

    @property
    def shape(self) -> list[int]:
        return list(self.data.shape)

    def index(self, place) -> "Shared":
        return Shared(self.data[int(place)])

    def slice(self, start, length, dim=0) -> "Shared":
        assert int(start) % 8 == 0, "a view must start where the swizzle does"
        return Shared(self.data.narrow(dim, int(start), length))

    def permute(self, order) -> "Shared":
        return Shared(self.data.permute(*order))

    def load(self, _layout=None) -> Tensor:
        return self.data.clone()

    def store(self, value: Tensor) -> None:
        assert value.shape == self.data.shape
        assert value.dtype == self.data.dtype
        self.data.copy_(value)


class Barrier:
    """An mbarrier: a phase ends when all arrivals and all bytes have come."""

    def __init__(self) -> None:
        self.changed, self.phase = threading.Condition(), 0

    def init(self, count: int) -> None:
        self.count = self.pending = count
        self.bytes = 0

    def arrive(self, arrivals: int = 0, expected: int = 0, came: int = 0) -> None:
        with self.changed:
            self.pending -= arrivals
            self.bytes += expected - came
            assert self.pending >= 0, "more arrivals than the barrier counts"
            if self.pending == 0 and self.bytes == 0:
                self.phase, self.pending = self.phase ^ 1, self.count
                self.changed.notify_all()

    def wait(self, phase: int) -> None:
        end = time.monotonic() + PATIENCE
        with self.changed:
            while not self.changed.wait_for(lambda: self.phase != phase, 0.1):
                assert not LOCAL.failures, "another partition failed"
                assert time.monotonic() < end, "deadlock"


class Barriers:
    def __init__(self, number: int) -> None:
        self.barriers = [Barrier() for _ in range(number)]

    def index(self, place) -> Barrier:
        return self.barriers[int(place)]


class Pointer:
    """A pointer, or several: flat memory and places in it."""

    def __init__(self, memory: Tensor, places=0) -> None:
        self.memory, self.places = memory, places

    def __add__(self, offset) -> "Pointer":
        return Pointer(self.memory, self.places + offset)


class Product:
    """A product under way; its operands are read when it is computed."""

    def __init__(self, left, right: Shared, total, use_acc: bool) -> None:
        self.left, self.right, self.total, self.use_acc = left, right, total, use_acc
        self.value: Tensor | None = None

    def compute(self) -> None:
        left = self.left.data if isinstance(self.left, Shared) else self.left
        assert left.dtype == self.right.data.dtype == torch.bfloat16
        self.value = left.float() @ self.right.data.float()
        if self.use_acc:
            self.value = self.value + (self.total.value if isinstance(self.total, Product) else self.total)


def copy_in(descriptor: Descriptor, corner, barrier: Barrier, target: Shared) -> None:
    assert target.shape == descriptor.block_shape
    target.data.fill_(torch.nan)

    @torch.no_grad()
    def arrive() -> None:
        time.sleep(random.random() * LATEST)
        part, rows, columns = descriptor.inside(corner)
        target.data.zero_()
        target.data[:rows, :columns] = part
        barrier.arrive(came=target.data.numel() * target.data.element_size())

    threading.Thread(target=arrive, daemon=True).start()


def copy_out(descriptor: Descriptor, corner, source: Shared) -> None:
    assert source.shape == descriptor.block_shape

    def leave() -> None:
        part, rows, columns = descriptor.inside(corner)
        part.copy_(source.data[:rows, :columns])

    LOCAL.copies.append(leave)


def wait_for_copies(most: int) -> None:
    while len(LOCAL.copies) > most:
        LOCAL.copies.pop(0)()


def warpgroup_mma(left, right, total, *, use_acc=True, is_async=False) -> Product:
    assert is_async
    product = Product(left, right, total, use_acc)
    LOCAL.products.append(product)
    return product


def warpgroup_mma_wait(num_outstanding=0, deps=()):
    while len(LOCAL.products) > num_outstanding:
        LOCAL.products.pop(0).compute()
    found = [each.value if isinstance(each, Product) and each.value is not None else each for each in deps]
    return found[0] if len(found) == 1 else tuple(found)


@contextmanager
def _typed_tensors() -> Iterator[None]:
    """Let a tensor have a `type` with a layout, as a kernel's has."""
    kept = torch.Tensor.type
    torch.Tensor.type = property(lambda _: SimpleNamespace(layout=Layout()))
    try:
        yield
    finally:
        torch.Tensor.type = kept


def warp_specialize(partitions, _warps, _registers) -> None:
    program, grid, failures = LOCAL.program, LOCAL.grid, []

    @torch.no_grad()
    def run(function, arguments) -> None:
        enter(program, grid)
        LOCAL.failures = failures
        try:
            function(*arguments)
            leave()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=each, daemon=True) for each in partitions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * PATIENCE)
    if failures:
        raise failures[0]


def enter(program: int, grid: int) -> None:
    LOCAL.program, LOCAL.grid = program, grid
    LOCAL.products, LOCAL.copies, LOCAL.failures = [], [], []


def leave() -> None:
    assert not LOCAL.products, "a product that nobody waited for"
    assert not LOCAL.copies, "a copy that nobody waited for"


class Kernel:
    """A kernel as the host sees it, and the plain function as other kernels do."""

    def __init__(self, function) -> None:
        self.function = function

    def __call__(self, *args, **options):
        return self.function(*args, **options)

    def __getitem__(self, grid):
        def launch(*args, num_warps=None, maxnreg=None, **options) -> None:
            given = [Pointer(each.view(-1)) if isinstance(each, Tensor) else each for each in args]
            for program in range(grid[0]):
                enter(program, grid[0])
                with _typed_tensors():
                    self.function(*given, **options)
                leave()

        return launch


def _jit(function=None, **_options):
    return Kernel if function is None else Kernel(function)


def _load(pointer: Pointer, mask=None, other=None) -> Tensor:
    if mask is None:
        return pointer.memory[pointer.places]
    places = torch.where(mask, pointer.places, 0)
    return torch.where(mask, pointer.memory[places], torch.tensor(other, dtype=pointer.memory.dtype))


def _store(pointer: Pointer, value: Tensor, mask=None) -> None:
    places = pointer.places.expand(value.shape)
    kept = slice(None) if mask is None else mask.expand(value.shape)
    pointer.memory[places[kept]] = value.to(pointer.memory.dtype)[kept]


def _allocate(dtype, shape, _layout=None):
    return Barriers(shape[0]) if dtype == torch.int64 else Shared(torch.full(shape, torch.nan, dtype=dtype))


def _inline_asm(asm: str, *args, **_options) -> Tensor:
    assert asm.startswith("tanh.approx.f32")
    return args[1][0].tanh()


LANGUAGE = {
    **dict.fromkeys(
        ("NVMMADistributedLayout", "DotOperandLayout", "BlockedLayout", "SliceLayout", "SwizzledSharedLayout",
         "NVMMASharedLayout", "DistributedLinearLayout"), Layout,
    ),
    **{name: getattr(torch, name) for name in ("bfloat16", "float32", "int64", "exp2", "log2", "rsqrt", "where")},
    "constexpr": lambda value: value,
    "static_range": range,
    "program_id": lambda _axis: LOCAL.program,
    "num_programs": lambda _axis: LOCAL.grid,
    "allocate_shared_memory": _allocate,
    "arange": lambda start, end, layout=None: torch.arange(start, end),
    "zeros": lambda shape, dtype, layout=None: torch.zeros(shape, dtype=dtype),
    "maximum": lambda x, least: x.clamp(min=least),
    "max": lambda x, axis: x.amax(dim=axis),
    "sum": lambda x, axis: x.sum(dim=axis),
    "reshape": lambda x, shape: x.reshape(tuple(shape)),
    "permute": lambda x, order: x.permute(*order),
    "split": lambda x: x.unbind(dim=-1),
    "join": lambda x, y: torch.stack((x, y), dim=-1),
    "convert_layout": lambda x, layout, assert_trivial=False: x,
    "load": _load,
    "store": _store,
    "inline_asm_elementwise": lambda asm, constraints, args, **_options: _inline_asm(asm, constraints, args),
    "warp_specialize": warp_specialize,
}  # fmt: skip
HOPPER = {
    "fence_async_shared": lambda: None,
    "tma": SimpleNamespace(async_load=copy_in, async_store=copy_out, store_wait=wait_for_copies),
    "mbarrier": SimpleNamespace(
        MBarrierLayout=Layout,
        init=lambda barrier, count: barrier.init(count),
        expect=lambda barrier, size: barrier.arrive(arrivals=1, expected=size),
        arrive=lambda barrier, count: barrier.arrive(arrivals=count),
        wait=lambda barrier, phase: barrier.wait(int(phase)),
    ),
    "warpgroup_mma": warpgroup_mma,
    "warpgroup_mma_wait": warpgroup_mma_wait,
}


def _module(name: str, **contents) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(contents)
    return module


@contextmanager
def _modules(changed: dict[str, ModuleType]) -> Iterator[None]:
    kept = {name: sys.modules.get(name) for name in changed}
    sys.modules.update(changed)
    try:
        yield
    finally:
        for name, module in kept.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def emulated(name: str, num_multiprocessors: int = 2) -> ModuleType:
    """Load a module of `looped.kernels` once more, its Gluon kernels and all that they import run by the emulator."""
    gluon = "triton.experimental.gluon"
    language = _module(f"{gluon}.language", **LANGUAGE)
    changed = {
        gluon: _module(gluon, jit=_jit, language=language),
        language.__name__: language,
        f"{gluon}.language.nvidia.hopper": _module("hopper", **HOPPER),
        f"{gluon}.nvidia.hopper": _module("host", TensorDescriptor=Descriptor),
    }
    changed["triton.experimental"] = _module("triton.experimental", gluon=changed[gluon])
    with _modules(changed):
        common = _again("looped.kernels.gluon_common")
        common.num_multiprocessors = lambda _device: num_multiprocessors
        common.attempt = lambda _purpose, launch: launch() is None  # here an error is an error
        with _modules({common.__name__: common}):
            return _again(name)


def _again(name: str) -> ModuleType:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
