"""How fast a machine trains and runs looped models: every engine in one run, held against plain PyTorch in it.

A row counts the work that the model asks for (three forward passes of products a step); what an engine computes twice
does not count.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from looped.config import ModelConfig, TrainConfig
from looped.errors import unknown
from looped.models import LoopModel, build_model
from looped.tasks import Spec
from looped.training.engine import Engine, choose_device, set_engine
from looped.training.objective import TensorBatch, loop_loss
from looped.training.stepper import Stepper
from looped.training.trainer import hardware

ENGINES: tuple[Engine, ...] = ("eager", "compiled", "fused")
WARM_UPS, SECONDS = 4, 1.5
CHECKED_LOOPS = 4
"""loops of the check: after many, rounding has the last word in every engine"""


class Preset(NamedTuple):
    """A model, the shape of its data and the batch sizes that are measured."""

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
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return PRESETS[name]


def bench_train(
    name: str, *, engines: Sequence[Engine] = ENGINES, batches: Sequence[int] = (), device: str = "auto", **change: Any
) -> Iterator[dict[str, Any]]:
    """One row per engine and batch: a whole training step, with AdamW. `change` replaces fields of the model."""
    chosen = preset(name)
    place = choose_device(device)  # pyright: ignore[reportArgumentType]
    model = replace(chosen.model, **change)
    rate = matrix_rate(place)
    for batch in batches or chosen.batches:
        for engine in engines:
            yield {"preset": name, "batch": batch, "engine": engine, "num_loops": model.num_loops,
                   **_train_row(model, chosen.spec, batch, engine, place, rate)}  # fmt: skip


def bench_infer(
    name: str, *, engines: Sequence[Engine] = ENGINES, batches: Sequence[int] = (), device: str = "auto", **change: Any
) -> Iterator[dict[str, Any]]:
    """One row per engine and batch: the answer after the last loop."""
    chosen = preset(name)
    place = choose_device(device)  # pyright: ignore[reportArgumentType]
    config = replace(chosen.model, **change)
    rate = matrix_rate(place)
    for batch in batches or chosen.batches:
        for engine in engines:
            _forget_memory(place)
            model = _opened(config, chosen.spec).to(place)
            inputs = _batch(chosen.spec, batch, place).inputs
            used = set_engine(model, engine, place)
            with torch.no_grad():
                seconds = _seconds(lambda model=model, inputs=inputs: model(inputs), place)
            work = batch * model.flops()
            yield {
                "preset": name, "batch": batch, "engine": used, "num_loops": config.num_loops,
                **_speed(batch, seconds, work, rate), "peak_gib": _peak_gib(place),
            }  # fmt: skip


def bench_scaling(name: str, *, device: str = "auto", engine: Engine | None = None) -> Iterator[dict[str, Any]]:
    """Time and memory of a step against loops, tokens and batch, each doubled three times from an eighth."""
    chosen = preset(name)
    place = choose_device(device)  # pyright: ignore[reportArgumentType]
    engine = engine or ("fused" if place.type == "cuda" else "eager")
    rate = matrix_rate(place)
    batch = chosen.batches[0]
    for part in (8, 4, 2, 1):
        variants = {
            "loops": (replace(chosen.model, num_loops=max(1, chosen.model.num_loops // part)), chosen.spec, batch),
            "tokens": (chosen.model, replace(chosen.spec, seq_len=max(2, chosen.spec.seq_len // part)), batch),
            "batch": (chosen.model, chosen.spec, max(1, batch // part)),
        }
        for varied, (model, spec, size) in variants.items():
            row = _train_row(model, spec, size, engine, place, rate)
            shape = {"num_loops": model.num_loops, "seq_len": spec.seq_len, "batch": size}
            yield {"preset": name, "varied": varied, **shape, **row}


def matrix_rate(device: torch.device) -> float:
    """TFLOP/s of a large product, in bfloat16 on a GPU: the ceiling that rows are held against."""
    size, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    factor = torch.randn(size, size, device=device).to(dtype)
    return 2 * size**3 / _seconds(lambda: factor @ factor, device) / 1e12


def _train_row(
    config: ModelConfig, spec: Spec, batch: int, engine: Engine, device: torch.device, rate: float
) -> dict[str, Any]:
    _forget_memory(device)
    train = TrainConfig(batch_size=batch, engine=engine, learning_rate=1e-4)
    error = gradient_error(config, spec, engine, device)
    model = _opened(config, spec).to(device)
    data = _batch(spec, batch, device)
    started = time.monotonic()
    stepper = Stepper(model, train, device)
    number = iter(range(10**9))

    def step() -> Tensor:
        return stepper(next(number), data, config.num_loops, 1.0)

    for _ in range(WARM_UPS):
        step()
    _wait(device)
    prepared = time.monotonic() - started
    seconds = _seconds(step, device)
    work = 3 * batch * model.flops(seq_len=spec.seq_len)
    return {
        "engine": stepper.engine,
        **_speed(batch, seconds, work, rate),
        "peak_gib": _peak_gib(device),
        "seconds_to_first_step": round(prepared, 1),
        "gradient_error": error,
    }


def _speed(batch: int, seconds: float, work: int, rate: float) -> dict[str, float]:
    tflops = work / seconds / 1e12
    return {
        "ms": round(1000 * seconds, 3),
        "sequences_per_second": round(batch / seconds, 1),
        "tflops": round(tflops, 2),
        "share_of_matrix_rate": round(tflops / rate, 4),
    }


def gradient_error(config: ModelConfig, spec: Spec, engine: Engine, device: torch.device) -> float:
    """Relative distance of an engine's gradient from that of plain PyTorch in float32, after a few loops."""
    few = replace(config, num_loops=min(config.num_loops, CHECKED_LOOPS))
    data = _batch(spec, 2, device)
    found = []
    for precision, used in (("float32", "eager"), (config.precision, engine)):
        model = _opened(replace(few, precision=precision), spec).to(device)
        set_engine(model, used, device)  # pyright: ignore[reportArgumentType]
        ((_, state),) = model.states_at(data.inputs, few.num_loops, [few.num_loops - 1])
        loop_loss(model.read_out(state), data).backward()
        gradients = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
        found.append(torch.cat(gradients).double())
    plain, fast = found
    return round(float((plain - fast).norm() / plain.norm()), 6)


def _opened(config: ModelConfig, spec: Spec) -> LoopModel:
    """A model whose gates are open: at its start a gated block does nothing, and nothing would be checked."""
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


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    """Of one call, over as many as fit into a while."""
    call()
    _wait(device)
    started, calls = time.perf_counter(), 0
    while True:
        for _ in range(max(1, calls)):  # the number doubles, so that waiting for the device costs nothing
            call()
        calls = 2 * max(1, calls) if calls else 1
        _wait(device)
        spent = time.perf_counter() - started
        if spent > SECONDS:
            return spent / calls


def _forget_memory(device: torch.device) -> None:
    """Of what was measured before."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _peak_gib(device: torch.device) -> float | None:
    return round(torch.cuda.max_memory_allocated() / 2**30, 2) if device.type == "cuda" else None


def machine(device: str = "auto") -> dict[str, Any]:
    """What the rows were measured on."""
    place = choose_device(device)  # pyright: ignore[reportArgumentType]
    return {"hardware": hardware(place), "torch": torch.__version__, "matrix_tflops": round(matrix_rate(place), 3)}
