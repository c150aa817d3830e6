"""Every knob of a run as a frozen dataclass, its JSON form and the key that names its folder. No torch here.

Values are checked when they are built and never changed afterwards. The string under a field is its help text.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import lru_cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from looped.tasks import Task, task_class
from looped.tasks.base import MAX_INDEX
from looped.utils.errors import InputError, check_fields, require, unknown
from looped.utils.types import Device, WantedEngine

MAX_CHOICES = 8
# Conditionings that learn a row for each loop on its own, where the others make it from the loop's time or have none.
FREE_TABLES = ("table", "eta")
MAX_THREADS = 1024  # more than a machine has cores; many more it would refuse, and not in our words


def _volatile(default: Any) -> Any:
    """A field that says how a run is carried out, not what it computes: it is no part of the run's identity."""
    return field(default=default, metadata={"volatile": True})


def _require_finite(config: Any) -> None:
    """No rate is infinite, and JSON, which the config is stored as, has no word for it."""
    for name, value in vars(config).items():
        require(not isinstance(value, float) or math.isfinite(value), f"{name} must be finite, got {value}")


def _require_positive(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        require(value is None or value > 0, f"{name} must be positive, got {value}")


@dataclass(frozen=True)
class ModelConfig:
    """The model between its two ends (paper, Sections 2 and 4.2)."""

    block: Literal["standard", "looped", "modulated"] = "looped"
    """standard: untied layers, applied once; looped: tied layers; modulated: tied layers scaled per loop (TMLT)"""
    dim: int = 256
    """width of the state, d"""
    num_heads: int = 4
    """attention heads; must divide the width"""
    num_layers: int = 1
    """layers in the stack that is looped (or, for a standard model, in all)"""
    num_loops: int = 1
    """times the stack is applied in training, r"""
    ff_dim: int | None = None
    """width of the feed-forward layer (None: 4 times the width)"""
    injection: Literal["none", "add", "concat"] = "none"
    """how the input embedding e enters: x0 = e; or x + e in every loop; or a learned map of (x, e) in every loop"""
    conditioning: Literal[
        "auto", "none", "timestep", "static", "table", "eta", "additive", "scale", "gate", "shift"
    ] = "auto"
    """what a modulated block is scaled by (auto: timestep for modulated, none otherwise)"""
    modulation_start: Literal["exact", "random"] = "exact"
    """of what is made from t: 1 for scales and 0 for gates, exactly; or the last matrix drawn like any other"""
    beyond: Literal["extend", "clamp", "rescale"] = "extend"
    """time of loop t when more loops are run than trained: t, the last trained t, or t times trained / run"""
    positions: Literal["none", "learned", "sinusoidal", "rotary", "coordinates"] = "learned"
    """position signal: added to the embedding, or rotary in the attention, or embeddings of the task's coordinates"""
    activation: Literal["gelu", "relu", "silu"] = "gelu"
    """activation of the feed-forward layer"""
    attention: Literal["task", "causal", "full"] = "task"
    """mask of the attention (task: as the task says)"""
    ends: Literal["task", "shared", "apart"] = "task"
    """one table of tokens for the first and the last step, or one for each (task: as the task says)"""
    selection: Literal["softmax", "hardmax"] = "softmax"
    """weights of the attention: the usual ones, or equal ones on the largest scores alone, as in the theory"""
    norm: Literal["rms", "query-key", "none"] = "rms"
    """normalisation in front of attention, feed-forward layer and read-out; or of queries, keys and read-out alone"""
    precision: Literal["float32", "bfloat16", "float64"] = "float32"
    """of the products; under bfloat16, weights stay in float32 and the state in float32 or 24 bits of it"""

    def __post_init__(self) -> None:
        check_fields(self)
        _require_positive(self, "dim", "num_heads", "num_layers", "num_loops", "ff_dim")
        require(
            self.dim % self.num_heads == 0,
            f"num_heads must divide dim: expected a divisor of {self.dim}, got {self.num_heads}",
        )
        require(self.dim % 2 == 0, f"dim must be even (sines and cosines come in pairs), got {self.dim}")
        require(
            self.positions != "rotary" or (self.dim // self.num_heads) % 2 == 0,
            f"rotary positions need an even head size, got {self.dim} / {self.num_heads}",
        )
        require(
            self.block != "standard" or self.num_loops == 1,
            f"a standard model applies its layers once: expected num_loops 1, got {self.num_loops}",
        )
        require(
            self.block == "modulated" or self.conditioning in ("auto", "none"),
            f"conditioning {self.conditioning!r} needs block 'modulated', got {self.block!r}",
        )
        require(
            self.modulation_start == "exact" or self.resolved_conditioning in ("timestep", "scale", "gate", "shift"),
            f"modulation_start 'random' needs a conditioning made from t, got {self.resolved_conditioning!r}",
        )

    @property
    def resolved_conditioning(self) -> str:
        if self.conditioning != "auto":
            return self.conditioning
        return "timestep" if self.block == "modulated" else "none"

    @property
    def resolved_ff_dim(self) -> int:
        return 4 * self.dim if self.ff_dim is None else self.ff_dim

    def is_causal(self, task: bool) -> bool:
        """Whether the attention looks back alone, where the task says so or not."""
        return task if self.attention == "task" else self.attention == "causal"

    def has_time_for(self, num_loops: int) -> bool:
        """Whether so many loops can be run: a free table has rows for the trained ones alone."""
        free = self.resolved_conditioning in FREE_TABLES
        return num_loops <= self.num_loops or not free or self.beyond != "extend"


@dataclass(frozen=True)
class TrainConfig:
    """How the weights are found. Everything is counted in steps, never in time."""

    num_steps: int = 10_000
    """optimizer steps"""
    batch_size: int = 64
    """examples per step"""
    num_examples: int | None = None
    """size of a fixed training set, visited in a seeded permutation per epoch (None: an endless stream)"""
    accumulation: int = 1
    """parts a batch is cut into, to save memory; the gradient stays the batch's (with growth_limit, which compares the
    examples of a part, nearly)"""

    optimizer: Literal["adamw", "muon"] = "adamw"
    """adamw for all, or muon for the block's matrices and adamw for the rest"""
    learning_rate: float = 1e-4
    """peak rate of adamw"""
    beta1: float = 0.9
    """adamw's first moment decay"""
    beta2: float = 0.999
    """adamw's second moment decay"""
    weight_decay: float = 0.01
    """adamw's decoupled weight decay, on matrices only"""
    muon_learning_rate: float = 0.02
    """peak rate of muon"""
    muon_momentum: float = 0.95
    """momentum of muon"""
    muon_weight_decay: float = 0.0
    """decoupled weight decay of muon's matrices"""
    schedule: Literal["linear", "cosine", "stable"] = "linear"
    """after warm-up: linear decay, cosine decay, or stable and then a linear decay over the last `decay_share`"""
    warmup_steps: int = 5
    """steps of linear warm-up"""
    decay_share: float = 0.2
    """share of the steps in which the stable schedule decays"""
    final_rate: float = 0.0
    """rate that the steps end towards, as a share of the peak: one more would have it"""
    clip_norm: float | None = 1.0
    """largest norm of the gradient (None: any)"""
    spike_factor: float | None = None
    """pass over a step whose gradient is more than this many times as long as usual (None: pass over none)"""
    growth_limit: float | None = None
    """let no example's gradient grow, from the last loop back, to more than this many times what its batch's usually
    grow to (None: no limit)"""
    ema_decay: float | None = None
    """decay of an exponential moving average of the weights, which is then what is evaluated (None: no average)"""

    supervision: Literal["last", "mean", "sum"] = "last"
    """loss on the last loop, or the mean or sum over loops"""
    supervised_loops: int | None = None
    """with mean or sum: the number of last loops that count (None: all)"""
    backprop_loops: int | None = None
    """truncated backpropagation: loops, counted from the last, that get a gradient (None: all)"""
    loop_schedule: Literal["fixed", "growing", "random"] = "fixed"
    """loops per step: num_loops, or `loop_choices` in order, or one of them at random"""
    loop_choices: tuple[int, ...] = ()
    """loop counts of the growing and random schedules (at most 8)"""
    size_schedule: Literal["fixed", "growing", "random"] = "fixed"
    """example size per step: the task's, or `size_choices` in order, or one of them at random"""
    size_choices: tuple[float, ...] = ()
    """example sizes of the growing and random schedules, as shares of the task's size (at most 16)"""
    curriculum_steps: int | None = None
    """steps over which growing schedules reach their last choice (None: half of all)"""
    init_from: str | None = None
    """folder of a run, or name of a shipped model, whose weights this one starts from (None: fresh ones)"""

    eval_every: int = _volatile(1000)
    """steps between evaluations on validation data"""
    eval_size: int = _volatile(1000)
    """examples of an evaluation"""
    checkpoint_every: int = _volatile(1000)
    """steps between checkpoints"""
    log_every: int = _volatile(50)
    """steps between lines of the log"""
    max_minutes: float | None = _volatile(None)
    """stop cleanly after this long, with a checkpoint (None: never); the schedule stays and the run can be resumed"""
    device: Device = _volatile("auto")
    """where to compute"""
    engine: WantedEngine = _volatile("auto")
    """plain PyTorch, compiled sublayers, or fused kernels (auto: fused on a GPU where they cover the model)"""
    remat: int = _volatile(0)
    """loops between states that are kept for the backward pass, the rest being computed again (0: keep all)"""
    num_threads: int | None = _volatile(None)
    """CPU threads of PyTorch (None: its own choice)"""
    num_workers: int | None = _volatile(None)
    """background threads that prepare batches (None: one per two of PyTorch's threads, at most eight)"""
    track: Literal["none", "tensorboard", "wandb"] = _volatile("none")
    """also send the log to TensorBoard (in the run's folder) or Weights & Biases"""

    def __post_init__(self) -> None:
        check_fields(self)
        _require_finite(self)
        _require_positive(
            self, "num_steps", "batch_size", "num_examples", "accumulation", "learning_rate", "muon_learning_rate",
            "clip_norm", "supervised_loops", "backprop_loops", "curriculum_steps", "eval_every", "eval_size",
            "checkpoint_every", "log_every", "max_minutes", "num_threads", "num_workers",
        )  # fmt: skip
        for name in ("num_threads", "num_workers"):
            value = getattr(self, name)
            require(value is None or value <= MAX_THREADS, f"{name} must be at most {MAX_THREADS}, got {value}")
        seen = self.num_steps * self.batch_size  # examples are asked for by their numbers
        for name, count in (("num_steps x batch_size", seen), ("num_examples", self.num_examples or 0)):
            require(count <= MAX_INDEX, f"{name} must be at most {MAX_INDEX}, got {count}")
        require(
            self.batch_size % self.accumulation == 0,
            f"accumulation must divide batch_size: expected a divisor of {self.batch_size}, got {self.accumulation}",
        )
        for name in ("warmup_steps", "weight_decay", "muon_weight_decay", "remat"):
            value = getattr(self, name)
            require(value >= 0, f"{name} must not be negative, got {value}")
        for name in ("beta1", "beta2", "muon_momentum", "ema_decay"):
            value = getattr(self, name)
            require(value is None or 0 <= value < 1, f"{name} must be in [0, 1), got {value}")
        for name in ("spike_factor", "growth_limit"):
            value = getattr(self, name)
            require(value is None or value > 1, f"{name} must exceed 1, got {value}")
        for name in ("decay_share", "final_rate"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"{name} must be in [0, 1], got {value}")
        require(
            self.supervision != "last" or self.supervised_loops is None,
            "supervised_loops needs supervision 'mean' or 'sum', got 'last'",
        )
        for what, most in (("loop", MAX_CHOICES), ("size", 2 * MAX_CHOICES)):
            schedule, choices = getattr(self, f"{what}_schedule"), getattr(self, f"{what}_choices")
            require(
                (schedule == "fixed") == (not choices),
                f"{what}_choices go with {what}_schedule 'growing' or 'random', got {choices} with {schedule!r}",
            )
            require(
                len(choices) <= most and all(choice > 0 for choice in choices),
                f"{what}_choices must be at most {most} positive numbers, got {choices}",
            )
        require(
            all(choice <= 1 for choice in self.size_choices),
            f"size_choices are shares of the task's size, at most 1, got {self.size_choices}",
        )


@dataclass(frozen=True)
class RunConfig:
    """One run: which task, which model, how to train, from which seed. Its content is its identity."""

    task: Task
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    seed: int = 0
    """seed of the weights and of the data"""

    def __post_init__(self) -> None:
        check_fields(self)
        require(0 <= self.seed < 2**32, f"seed must be in 0..2^32-1, got {self.seed}")
        standard = self.model.block == "standard"
        require(
            not standard or self.train.loop_schedule == "fixed",
            f"a standard model has no loops to schedule, got loop_schedule {self.train.loop_schedule!r}",
        )
        require(
            all(choice <= self.model.num_loops for choice in self.train.loop_choices),
            f"loop_choices must not exceed num_loops = {self.model.num_loops}, got {self.train.loop_choices}",
        )

    @property
    def key(self) -> str:
        """A short hash of the fields that differ from their defaults and define the run."""
        text = json.dumps(_different(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    @property
    def folder_name(self) -> str:
        return f"{self.task.name}-{self.model.block}-{self.key}"

    def to_json(self) -> dict[str, Any]:
        """All fields, resolved: what `config.json` holds."""
        return _encode(self)

    def identity(self) -> dict[str, Any]:
        """All fields that define the run: two runs are one if these are equal."""
        return _encode(self, volatile=False)

    @classmethod
    def from_json(cls, data: Any) -> "RunConfig":
        """Read back `to_json`; an unknown or ill-typed field is an `InputError` that names it."""
        require(isinstance(data, dict) and isinstance(data.get("task"), dict), "expected an object with a field 'task'")
        tagged = dict(data["task"])
        task = _decode(task_class(str(tagged.pop("name", None))), tagged, "task")
        rest = {key: value for key, value in data.items() if key != "task"}
        return _decode(cls, rest, "", task=task)


def differences(first: RunConfig, second: RunConfig) -> dict[str, tuple[Any, Any]]:
    """The fields that define a run and that two disagree in: by path, both values, None where one has no such field."""
    one, other = _by_path(first), _by_path(second)
    both = {path: (one.get(path), other.get(path)) for path in {**one, **other}}
    return {path: (mine, others) for path, (mine, others) in both.items() if mine != others}


@lru_cache(maxsize=1024)
def _by_path(config: RunConfig) -> dict[str, Any]:
    return dict(_flat(config.identity()))


def _flat(values: dict[str, Any], where: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        path = f"{where}.{name}".lstrip(".")
        yield from _flat(value, path) if isinstance(value, dict) else [(path, value)]


def _encode(config: Any, *, volatile: bool = True) -> dict[str, Any]:
    result: dict[str, Any] = {"name": config.name} if isinstance(config, Task) else {}
    for each in fields(config):
        if each.metadata.get("volatile") and not volatile:
            continue
        value = getattr(config, each.name)
        result[each.name] = _encode(value, volatile=volatile) if is_dataclass(value) else value
    return json.loads(json.dumps(result))


def _different(config: Any) -> dict[str, Any]:
    """The defining fields that do not have their default: a new knob leaves the keys of older runs alone."""
    result: dict[str, Any] = {"name": config.name} if isinstance(config, Task) else {}
    for each in fields(config):
        value = getattr(config, each.name)
        if each.metadata.get("volatile"):
            continue
        if is_dataclass(value):
            result[each.name] = _different(value)
        elif each.default is MISSING or value != each.default:
            # Names of folders were made so before 1 and 1.0 were one number from the start.
            whole = isinstance(value, float) and value.is_integer()
            result[each.name] = int(value) if whole else value
    return result


def _decode(cls: type, data: dict[str, Any], where: str, **given: Any) -> Any:
    hints = get_type_hints(cls)
    known = {each.name for each in fields(cls)}
    values = dict(given)
    for name, value in data.items():
        path = f"{where}.{name}".lstrip(".")
        if name not in known:
            raise unknown("field", path, (f"{where}.{each}".lstrip(".") for each in known))
        values[name] = _convert(hints[name], value, path)
    return cls(**values)


def _convert(annotation: Any, value: Any, path: str) -> Any:
    """A JSON value as the annotated type."""
    if get_origin(annotation) in (Union, UnionType):
        inner = [each for each in get_args(annotation) if each is not type(None)]
        return None if value is None else _convert(inner[0], value, path)
    if get_origin(annotation) is Literal:
        if value not in get_args(annotation):
            raise unknown(f"value of {path}:", value, map(str, get_args(annotation)))
        return value
    if get_origin(annotation) is tuple and isinstance(value, list):
        return tuple(_convert(get_args(annotation)[0], each, path) for each in value)
    if is_dataclass(annotation) and isinstance(value, dict):
        return _decode(annotation, value, path)  # type: ignore[arg-type]
    if annotation is float and type(value) in (int, float):
        return float(value)
    if annotation in (int, bool, str) and type(value) is annotation:
        return value
    raise InputError(f"{path} must be {getattr(annotation, '__name__', annotation)}, got {value!r}")
