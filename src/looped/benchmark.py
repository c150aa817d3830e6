"""Benchmark training and inference: every engine in one run, compared with plain PyTorch in the same run.

A row counts the FLOPs of the model (a training step has three times those of a forward pass). FLOPs that an engine
spends on recomputation do not count.
"""

import gc
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from looped.config import ModelConfig, TrainConfig
from looped.models import LoopModel, build_model
from looped.models.engines import choose_device, describe_device, set_engine
from looped.tasks import Spec
from looped.training.loss import TensorBatch, loop_loss
from looped.training.step import Stepper
from looped.utils.errors import require_one_of
from looped.utils.memory import OutOfMemory
from looped.utils.types import Device, Engine

ENGINES: tuple[Engine, ...] = get_args(Engine)
Varied = Literal["loops", "tokens", "batch", "remat"]
VARIED: tuple[Varied, ...] = get_args(Varied)
WARM_UPS, SECONDS = 4, 1.5
CHECKED_LOOPS = 4
"""loops of the gradient check; after many loops rounding dominates in every engine"""


class Preset(NamedTuple):
    """A model, the shape of its data and the batch sizes to measure."""

    model: ModelConfig
    spec: Spec
    batches: tuple[int, ...]


PRESETS = {
    # The sizes of the public implementation's figures.
    "reasoning": Preset(
        ModelConfig(
            block="modulated", dim=256, num_heads=4, num_loops=100, injection="add", positions="rotary",
            precision="bfloat16",
        ),
        Spec("tokens", 32, 192, 128),
        (64, 512),
    ),
    "lm": Preset(
        ModelConfig(block="modulated", dim=768, num_heads=12, num_loops=24, positions="rotary", precision="bfloat16"),
        Spec("tokens", 50304, 50304, 1024, causal=True, shared_vocabulary=True),
        (48,),
    ),
    "laptop": Preset(
        ModelConfig(block="modulated", dim=64, num_heads=4, num_loops=8, injection="add", positions="rotary"),
        Spec("tokens", 8, 24, 16),
        (64,),
    ),
}  # fmt: skip


def preset(name: str) -> Preset:
    """Return a preset. Raise InputError if there is none of that name."""
    require_one_of("preset", name, PRESETS)
    return PRESETS[name]


def bench_train(
    name: str,
    *,
    engines: Sequence[Engine] = ENGINES,
    batches: Sequence[int] = (),
    device: Device = "auto",
    **change: Any,
) -> Iterator[dict[str, Any]]:
    """Yield one row per engine and batch for a training step with AdamW. `change` replaces fields of the model."""
    yield from _rows(_train_row, name, engines, batches, device, change)


def bench_infer(
    name: str,
    *,
    engines: Sequence[Engine] = ENGINES,
    batches: Sequence[int] = (),
    device: Device = "auto",
    **change: Any,
) -> Iterator[dict[str, Any]]:
    """Yield one row per engine and batch for the answer after the last loop."""
    yield from _rows(_infer_row, name, engines, batches, device, change)


def _rows(
    measure: "RowOf",
    name: str,
    engines: Sequence[Engine],
    batches: Sequence[int],
    device: Device,
    change: dict[str, Any],
) -> Iterator[dict[str, Any]]:
    chosen = preset(name)
    place = choose_device(device)
    model = replace(chosen.model, **change)
    for batch in batches or chosen.batches:
        for engine in engines:
            row = measure(model, chosen.spec, batch, engine, place)
            yield {"preset": name, **change, "batch": batch, "num_loops": model.num_loops, **row}


def bench_scaling(
    name: str, *, varied: Collection[Varied] = VARIED, device: Device = "auto", engine: Engine | None = None
) -> Iterator[dict[str, Any]]:
    """Yield time and memory of a step for growing loops, tokens and batch, each doubled three times from an eighth.

    Rematerialisation is measured too, with up to ten times as many loops.
    """
    chosen = preset(name)
    place = choose_device(device)
    engine = engine or ("fused" if place.type == "cuda" else "eager")
    batch = chosen.batches[0]
    for part in (8, 4, 2, 1):
        variants: dict[Varied, tuple[ModelConfig, Spec, int]] = {
            "loops": (replace(chosen.model, num_loops=max(1, chosen.model.num_loops // part)), chosen.spec, batch),
            "tokens": (chosen.model, replace(chosen.spec, seq_len=max(2, chosen.spec.seq_len // part)), batch),
            "batch": (chosen.model, chosen.spec, max(1, batch // part)),
        }
        for what, (model, spec, size) in variants.items():
            if what in varied:
                yield {"preset": name, "varied": what, **_scaled_row(model, spec, size, engine, place)}
    for times, remat in ((1, 1), (1, 10), (10, 10)) if "remat" in varied else ():
        model = replace(chosen.model, num_loops=times * chosen.model.num_loops)
        yield {"preset": name, "varied": "remat", **_scaled_row(model, chosen.spec, batch, engine, place, remat)}


def _scaled_row(
    model: ModelConfig, spec: Spec, batch: int, engine: Engine, device: torch.device, remat: int = 0
) -> dict[str, Any]:
    shape = {"num_loops": model.num_loops, "seq_len": spec.seq_len, "batch": batch, "remat": remat}
    return {**shape, **_train_row(model, spec, batch, engine, device, remat)}


class Shape(NamedTuple):
    """Tokens of a sequence, model width and batch size."""

    seq_len: int
    dim: int
    batch: int


def bench_shapes(
    shapes: Sequence[Shape], engines: Sequence[Engine], *, num_loops: int, seconds: float, device: Device = "auto"
) -> Iterator[dict[str, Any]]:
    """Yield the time of a training step of the reasoning preset for each shape and engine, in heads of 64 channels.

    If the memory does not suffice, the time is None.
    """
    chosen, place = preset("reasoning"), choose_device(device)
    for seq_len, dim, batch in shapes:
        config = replace(chosen.model, dim=dim, num_heads=max(1, dim // 64), num_loops=num_loops)
        spec = replace(chosen.spec, seq_len=seq_len)
        for engine in engines:
            _forget_memory(place)
            try:
                step, used = _training_step(config, spec, batch, engine, place)
                _seconds_to_prepare(step, place)
                ms = round(1000 * _seconds(step, place, seconds), 3)
            except (torch.OutOfMemoryError, OutOfMemory):  # a step turns the first into the second
                used, ms = engine, None
            yield {"seq_len": seq_len, "dim": dim, "batch": batch, "num_loops": num_loops, "engine": used, "ms": ms}


def matrix_rate(device: torch.device) -> float:
    """Return the TFLOP/s of a large matmul (bfloat16 on a GPU), measured once per run as the ceiling for all rows."""
    return _matrix_rate(device, torch.get_num_threads())


@lru_cache
def _matrix_rate(device: torch.device, _threads: int) -> float:
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    factor = torch.randn(size, size, device=device).to(dtype)
    return 2 * size**3 / _seconds(lambda: factor @ factor, device) / 1e12


RowOf = Callable[[ModelConfig, Spec, int, Engine, torch.device], dict[str, Any]]
"""Measures one engine at one batch size. The row names the engine that ran, which may be a fallback."""


def _infer_row(config: ModelConfig, spec: Spec, batch: int, engine: Engine, device: torch.device) -> dict[str, Any]:
    _forget_memory(device)
    model = _opened(config, spec).to(device)
    inputs = _batch(spec, batch, device).inputs
    used = set_engine(model.stack, engine)
    answer = partial(model, inputs)
    with torch.no_grad():
        prepared = _seconds_to_prepare(answer, device)
        seconds = _seconds(answer, device)
    return {
        "engine": used,
        **_speed(batch, seconds, batch * model.flops(), device),
        "peak_gib": _peak_gib(device),
        "seconds_to_prepare": prepared,
    }


def _train_row(
    config: ModelConfig, spec: Spec, batch: int, engine: Engine, device: torch.device, remat: int = 0
) -> dict[str, Any]:
    _forget_memory(device)
    error = gradient_error(config, spec, engine, device)
    step, used = _training_step(config, spec, batch, engine, device, remat)
    prepared = _seconds_to_prepare(step, device)
    seconds = _seconds(step, device)
    work = 3 * batch * build_model(config, spec).flops()
    return {
        "engine": used,
        **_speed(batch, seconds, work, device),
        "peak_gib": _peak_gib(device),
        "seconds_to_prepare": prepared,
        "gradient_error": error,
    }


def _training_step(
    config: ModelConfig, spec: Spec, batch: int, engine: Engine, device: torch.device, remat: int = 0
) -> tuple[Callable[[], Tensor], Engine]:
    """Return a function that trains a new model by one step on the same batch, and the engine that it uses."""
    train = TrainConfig().override(batch_size=batch, engine=engine, learning_rate=1e-4, remat=remat)
    stepper, data = Stepper(_opened(config, spec).to(device), train, device), _batch(spec, batch, device)
    number = iter(range(10**9))
    return lambda: stepper(next(number), data, config.num_loops, 1.0), stepper.engine


def _speed(batch: int, seconds: float, work: int, device: torch.device) -> dict[str, float]:
    tflops = work / seconds / 1e12
    return {
        "ms": round(1000 * seconds, 3),
        "sequences_per_second": round(batch / seconds, 1),
        "tflops": float(f"{tflops:.4g}"),
        "share_of_matrix_rate": round(tflops / matrix_rate(device), 4),
    }


def gradient_error(config: ModelConfig, spec: Spec, engine: Engine, device: torch.device) -> float:
    """Return the relative distance of an engine's gradient from plain PyTorch in float32, after a few loops."""
    few = replace(config, num_loops=min(config.num_loops, CHECKED_LOOPS))
    data = _batch(spec, 2, device)
    found = []
    for precision, used in (("float32", "eager"), (config.precision, engine)):
        model = _opened(replace(few, precision=precision), spec).to(device)
        set_engine(model.stack, used)  # pyright: ignore[reportArgumentType]
        ((_, state),) = model.states_at(data.inputs, few.num_loops, [few.num_loops - 1])
        loop_loss(model.read_out(state), data).backward()
        gradients = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
        found.append(torch.cat(gradients).double())
    plain, fast = found
    return round(float((plain - fast).norm() / plain.norm()), 6)


def _opened(config: ModelConfig, spec: Spec) -> LoopModel:
    """Return a model with open gates, because a gated block does nothing at initialisation."""
    model = build_model(config, spec)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator))
    return model


def _batch(spec: Spec, size: int, device: torch.device) -> TensorBatch:
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randint(spec.input_size, (size, spec.seq_len), generator=generator)
    targets = torch.randint(spec.output_size, (size, spec.seq_len), generator=generator)
    mask = torch.ones(size, spec.seq_len, dtype=torch.bool)
    return TensorBatch(*(each.to(device) for each in (inputs, targets, mask)))


def _seconds_to_prepare(call: Callable[[], object], device: torch.device) -> float:
    """Return the seconds until everything is compiled and captured."""
    started = time.monotonic()
    for _ in range(WARM_UPS):
        call()
    _wait(device)
    return round(time.monotonic() - started, 1)


def _seconds(call: Callable[[], object], device: torch.device, at_least: float | None = None) -> float:
    """Return the seconds of one call, averaged over as many calls as fit into about `at_least` (None: SECONDS)."""
    at_least = SECONDS if at_least is None else at_least
    call()
    _wait(device)
    started, calls, more = time.perf_counter(), 0, 1
    while (spent := time.perf_counter() - started) <= at_least or not calls:
        for _ in range(more):
            call()
        _wait(device)
        calls += more
        more = calls  # double the number, so that synchronisation costs little
    return spent / calls


def _forget_memory(device: torch.device) -> None:
    """Free the memory of the previous measurement."""
    if device.type == "cuda":
        gc.collect()  # a stepper and its CUDA graphs refer to each other
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _peak_gib(device: torch.device) -> float | None:
    return round(torch.cuda.max_memory_allocated() / 2**30, 2) if device.type == "cuda" else None


def machine(device: Device = "auto") -> dict[str, Any]:
    """Return hardware, version and matmul rate of the machine."""
    place = choose_device(device)
    return {
        "hardware": describe_device(place),
        "torch": str(torch.__version__),
        "matrix_tflops": round(matrix_rate(place), 3),
    }
