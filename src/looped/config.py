"""Every setting of a run as frozen dataclasses, and the key that names a run's folder. Needs no torch.

A run is defined by its task, its model, its training settings and its seed. Only `TrainConfig.runtime` is not part of
that identity: it says how to carry a run out. Values are checked when a config is built. The string under a field is
its help text on the command line.
"""

import hashlib
import json
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from looped.serde import by_path, check_fields, decode, encode
from looped.tasks import Task, decode_task, encode_task
from looped.tasks.base import MAX_INDEX
from looped.utils import plugins
from looped.utils.errors import InputError, closest, require, require_field
from looped.utils.field_docs import documents_fields
from looped.utils.types import Device, EngineChoice, Precision

MAX_LOOP_CHOICES = 8
MAX_SIZE_CHOICES = 16
MIN_FLOAT8_WIDTH = 512  # float8 is not faster below it
MAX_LAYERS = 4096  # a layer is many objects, so that a damaged number would fill the memory before anything fails
MAX_THREADS = 1024  # OpenMP crashes the process if it cannot start that many
# These conditionings learn one row per loop, so they have no row for loops beyond the trained ones.
FREE_TABLES = ("table", "eta")


def _require_positive(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        require_field(value is None or value > 0, name, "a positive number", value)


def _require_not_negative(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        require_field(value >= 0, name, "a number of at least 0", value)


@documents_fields
@dataclass(frozen=True)
class ModelConfig:
    """The model between its embedding and its head (paper, Sections 2 and 4.2)."""

    block: Literal["standard", "looped", "modulated"] = "looped"
    """standard: untied layers, applied once (the paper's TF); looped: tied layers, applied num_loops times; modulated:
    looped, with scales and gates computed from the loop index (the paper's timestep encoding)"""
    dim: int = 256
    """width of the state, d"""
    num_heads: int = 4
    """attention heads; must divide dim"""
    num_layers: int = 1
    """layers in the looped stack (in a standard model: all layers)"""
    num_loops: int = 1
    """number of times the stack is applied in training, r"""
    ff_dim: int | None = None
    """width of the feed-forward layer (None: 4 times dim)"""
    injection: Literal["none", "add", "concat"] = "none"
    """how the input embedding e enters a loop: only at the start; as x + e; or as a learned map of (x, e)"""
    conditioning: Literal[
        "auto", "none", "timestep", "static", "table", "eta", "additive", "scale", "gate", "shift"
    ] = "auto"
    """how a modulated block depends on the loop index (auto: timestep if modulated, otherwise none)"""
    modulation_init: Literal["exact", "random"] = "exact"
    """initialisation of the timestep modulation: exactly scale 1 and gate 0, or a random last layer"""
    extrapolation: Literal["extend", "clamp", "rescale"] = "extend"
    """loop index t beyond the trained loops: t itself, the last trained t, or t * trained loops / run loops"""
    positions: Literal["none", "learned", "sinusoidal", "rotary", "coordinates"] = "learned"
    """position encoding: added to the embedding, rotary in the attention, or embeddings of the task's coordinates"""
    activation: Literal["gelu", "relu", "silu"] = "gelu"
    """activation of the feed-forward layer"""
    attention: Literal["task", "causal", "full"] = "task"
    """attention mask (task: the task decides)"""
    tie_embeddings: Literal["task", "yes", "no"] = "task"
    """use one token table for the embedding and the head (task: the task decides)"""
    attention_weights: Literal["softmax", "hardmax"] = "softmax"
    """softmax, or hardmax as in the theory: equal weights on the largest scores"""
    norm: Literal["rms", "query-key", "none"] = "rms"
    """RMS norm before attention, feed-forward layer and head; or of queries, keys and before the head only"""
    precision: Precision = "float32"
    """precision of the matmuls; with bfloat16, weights stay in float32 and the state in float32 or 24 bits of it.
    float8 is experimental: 8-bit factors in the largest matmuls, on a Hopper GPU"""

    layer: str = "transformer"
    """layer in the loop: a Transformer layer, or your own nn.Module from state to state (FILE.py:CLASS)"""
    attention_bias: str = "none"
    """added to the attention scores: none, alibi (a penalty for distance), or your own function (FILE.py:NAME)"""
    dropout: float = 0.0
    """share of each sublayer's update that is dropped in training"""
    prelude_layers: int = 0
    """untied layers between the embedding and the loop"""
    coda_layers: int = 0
    """untied layers between the loop and the head"""
    start: Literal["input", "random"] = "input"
    """state before the first loop: from the input (zeros with injection), or normal numbers (needs injection)"""
    halting_gate: bool = False
    """a learned gate that says after every loop, at every position, whether to stop (exit rule gate:LIMIT); it is
    trained by supervision halting"""

    def __post_init__(self) -> None:
        check_fields(self)
        _require_positive(self, "dim", "num_heads", "num_layers", "num_loops", "ff_dim")
        require_field(self.num_layers <= MAX_LAYERS, "num_layers", f"at most {MAX_LAYERS:,}", self.num_layers)
        require_field(self.dim % self.num_heads == 0, "num_heads", f"a divisor of dim = {self.dim}", self.num_heads)
        require_field(self.dim % 2 == 0, "dim", "an even number (sines and cosines come in pairs)", self.dim)
        head_size = f"{self.dim} / {self.num_heads}"
        has_pairs = self.positions != "rotary" or (self.dim // self.num_heads) % 2 == 0
        require_field(has_pairs, "positions", "an even head size for rotary positions", head_size)
        may_loop = self.block != "standard" or self.num_loops == 1
        require_field(may_loop, "num_loops", "1, because a standard model applies its layers once", self.num_loops)
        may_condition = self.block == "modulated" or self.conditioning in ("auto", "none")
        require_field(may_condition, "conditioning", f"none or auto with block {self.block!r}", self.conditioning)
        widths = self.dim, self.resolved_ff_dim
        has_width = self.precision != "float8" or (self.dim >= MIN_FLOAT8_WIDTH and not any(w % 16 for w in widths))
        wide = f"a width of at least {MIN_FLOAT8_WIDTH} and widths divisible by 16 for float8"
        require_field(has_width, "precision", wide, f"dim {self.dim} and ff_dim {self.resolved_ff_dim}")
        conditioning = self.resolved_conditioning
        has_projection = self.modulation_init == "exact" or conditioning in ("timestep", "scale", "gate", "shift")
        exact = f"exact with conditioning {conditioning!r}"
        require_field(has_projection, "modulation_init", exact, self.modulation_init)
        require_field(0 <= self.dropout < 1, "dropout", "a number in [0, 1)", self.dropout)
        _require_not_negative(self, "prelude_layers", "coda_layers")
        keeps_input = self.start == "input" or self.injection != "none"
        require_field(keeps_input, "start", "input with injection none, because the input would be lost", self.start)
        has_loops = self.block != "standard" or not self.halting_gate
        require_field(has_loops, "halting_gate", "false, because a standard model has no loops", self.halting_gate)
        is_ours = self.layer == "transformer"
        alone = "transformer with block modulated or an attention bias, which your own layer would not see"
        sees_all = is_ours or (self.block != "modulated" and self.attention_bias == "none")
        require_field(sees_all, "layer", alone, self.layer)

    @property
    def is_random(self) -> bool:
        """Return whether a training step draws random numbers."""
        return self.dropout > 0 or self.start == "random"

    @property
    def extensions(self) -> list[str]:
        """Return, in words, what the loop has that no kernel for all loops covers."""
        used = {
            "your own layer": self.layer != "transformer",
            "an attention bias": self.attention_bias != "none",
            "dropout": self.dropout > 0,
            "a random start state": self.start == "random",
        }
        return [what for what, here in used.items() if here]

    @property
    def resolved_conditioning(self) -> str:
        """Return the conditioning with `auto` resolved."""
        if self.conditioning != "auto":
            return self.conditioning
        return "timestep" if self.block == "modulated" else "none"

    @property
    def resolved_ff_dim(self) -> int:
        """Return the width of the feed-forward layer with its default resolved."""
        return 4 * self.dim if self.ff_dim is None else self.ff_dim

    def is_causal(self, task_is_causal: bool) -> bool:
        """Return whether attention is causal, given what the task asks for."""
        return task_is_causal if self.attention == "task" else self.attention == "causal"

    def supports_loops(self, num_loops: int) -> bool:
        """Return whether the model can run `num_loops` loops: a free table has rows for the trained loops only."""
        free = self.resolved_conditioning in FREE_TABLES
        return num_loops <= self.num_loops or not free or self.extrapolation != "extend"


@documents_fields
@dataclass(frozen=True)
class OptimizerConfig:
    """Optimizer, gradient clipping and weight averaging."""

    kind: Literal["adamw", "muon"] = "adamw"
    """adamw for all parameters, or muon for the block's matrices and adamw for the rest"""
    learning_rate: float = 1e-4
    """peak learning rate of AdamW"""
    beta1: float = 0.9
    """AdamW's decay of the first moment"""
    beta2: float = 0.999
    """AdamW's decay of the second moment"""
    weight_decay: float = 0.01
    """AdamW's decoupled weight decay, applied to matrices only"""
    muon_learning_rate: float = 0.02
    """peak learning rate of Muon"""
    muon_momentum: float = 0.95
    """momentum of Muon"""
    muon_weight_decay: float = 0.0
    """decoupled weight decay of Muon's matrices"""
    clip_norm: float | None = 1.0
    """largest gradient norm (None: no clipping)"""
    spike_factor: float | None = None
    """skip a step whose gradient norm exceeds this many times the usual norm (None: never skip)"""
    growth_limit: float | None = None
    """limit how much an example's gradient may grow from the last loop back to the first, as a multiple of the batch's
    typical growth (None: no limit)"""
    ema_decay: float | None = None
    """decay of an exponential moving average of the weights, which is then evaluated (None: no average)"""

    def __post_init__(self) -> None:
        check_fields(self)
        _require_positive(self, "learning_rate", "muon_learning_rate", "clip_norm")
        _require_not_negative(self, "weight_decay", "muon_weight_decay")
        for name in ("beta1", "beta2", "muon_momentum", "ema_decay"):
            value = getattr(self, name)
            require_field(value is None or 0 <= value < 1, name, "a number in [0, 1)", value)
        for name in ("spike_factor", "growth_limit"):
            value = getattr(self, name)
            require_field(value is None or value > 1, name, "a number above 1", value)


@documents_fields
@dataclass(frozen=True)
class ScheduleConfig:
    """Learning-rate schedule, as fractions of the peak rates."""

    kind: Literal["linear", "cosine", "stable"] = "linear"
    """after warm-up: linear decay, cosine decay, or constant with a linear decay over the last `decay_fraction`"""
    warmup_steps: int = 5
    """steps of linear warm-up"""
    decay_fraction: float = 0.2
    """fraction of the steps in which the stable schedule decays"""
    final_fraction: float = 0.0
    """final learning rate as a fraction of the peak (reached one step after the last)"""

    def __post_init__(self) -> None:
        check_fields(self)
        _require_not_negative(self, "warmup_steps")
        for name in ("decay_fraction", "final_fraction"):
            value = getattr(self, name)
            require_field(0 <= value <= 1, name, "a number in [0, 1]", value)


@documents_fields
@dataclass(frozen=True)
class CurriculumConfig:
    """How the number of loops and the size of the examples change over training."""

    loop_schedule: Literal["fixed", "growing", "random"] = "fixed"
    """loops per step: num_loops, `loop_choices` in order, or one of them at random"""
    loop_choices: tuple[int, ...] = ()
    """loop counts of the growing and random schedules (at most 8)"""
    size_schedule: Literal["fixed", "growing", "random"] = "fixed"
    """example size per step: the task's, `size_choices` in order, or one of them at random"""
    size_choices: tuple[float, ...] = ()
    """example sizes of the growing and random schedules, as fractions of the task's size (at most 16)"""
    curriculum_steps: int | None = None
    """steps until growing schedules reach their last choice (None: half of all steps)"""

    def __post_init__(self) -> None:
        check_fields(self)
        _require_positive(self, "curriculum_steps")
        for what, most in (("loop", MAX_LOOP_CHOICES), ("size", MAX_SIZE_CHOICES)):
            schedule, choices = getattr(self, f"{what}_schedule"), getattr(self, f"{what}_choices")
            name, both = f"{what}_choices", f"{choices} with {what}_schedule {schedule!r}"
            matching = "values with a growing or random schedule, and none with a fixed one"
            require_field((schedule == "fixed") == (not choices), name, matching, both)
            are_positive = len(choices) <= most and all(choice > 0 for choice in choices)
            require_field(are_positive, name, f"at most {most} positive numbers", choices)
        are_fractions = all(choice <= 1 for choice in self.size_choices)
        require_field(are_fractions, "size_choices", "fractions of the task's size, at most 1", self.size_choices)


@documents_fields
@dataclass(frozen=True)
class RuntimeConfig:
    """How a run is carried out. Nothing here changes what is computed, so none of it is part of a run's identity."""

    eval_every: int = 1000
    """steps between evaluations on validation data"""
    eval_size: int = 1000
    """number of validation examples"""
    checkpoint_every: int = 1000
    """steps between checkpoints"""
    log_every: int = 50
    """steps between log lines"""
    max_minutes: float | None = None
    """stop with a checkpoint after this many minutes (None: no limit); the same command resumes the run"""
    device: Device = "auto"
    """device to train on"""
    engine: EngineChoice = "auto"
    """plain PyTorch, compiled sublayers, or fused kernels (auto: fused on a GPU if they support the model)"""
    remat: int = 0
    """keep only every n-th loop's state for the backward pass and recompute the others (0: keep all)"""
    shard: bool = False
    """split weights and optimizer state over the processes of torchrun with FSDP2, for models that do not fit on one
    GPU (without CUDA graphs, and not with pieces)"""
    num_threads: int | None = None
    """CPU threads of PyTorch (None: PyTorch's choice)"""
    num_workers: int | None = None
    """background threads that prepare batches (None: one per two PyTorch threads, at most eight)"""
    track: Literal["none", "tensorboard", "wandb"] = "none"
    """also send the log to TensorBoard (in the run's folder) or Weights & Biases"""
    max_file_bytes: int = 5_000_000_000
    """split a checkpoint file above this size into several files with an index"""

    def __post_init__(self) -> None:
        check_fields(self)
        _require_positive(self, "eval_every", "eval_size", "checkpoint_every", "log_every", "max_minutes")
        _require_positive(self, "num_threads", "num_workers", "max_file_bytes")
        _require_not_negative(self, "remat")
        for name in ("num_threads", "num_workers"):
            value = getattr(self, name)
            require_field(value is None or value <= MAX_THREADS, name, f"at most {MAX_THREADS}", value)


@documents_fields
@dataclass(frozen=True)
class TrainConfig:
    """How a model is trained. Everything is counted in steps, never in time."""

    num_steps: int = 10_000
    """optimizer steps"""
    batch_size: int = 64
    """examples per step"""
    num_examples: int | None = None
    """size of a fixed training set, visited in a new seeded order every epoch (None: an endless stream)"""
    accumulation: int = 1
    """number of parts a batch is split into to save memory; the gradient is the whole batch's (nearly so with
    growth_limit, which compares the examples of one part). Pieces and several processes also split it"""
    pieces: int | None = None
    """split each batch into this many pieces, a power of two, and add their gradients in a fixed order: any number of
    processes that divides it then trains the same weights to the last bit (None: one piece per process)"""
    supervision: Literal["last", "mean", "sum", "halting"] = "last"
    """loss on the last loop, the mean or sum over loops, or the mean over the loops where the halting gate stops"""
    supervised_loops: int | None = None
    """with mean or sum: number of last loops in the loss (None: all)"""
    backprop_loops: int | None = None
    """truncated backpropagation: number of last loops with a gradient (None: all)"""
    free_loops: tuple[int, ...] = ()
    """loops without a gradient before the trained ones; each batch draws one of these numbers, such as 0 0 0 32 512
    (none given: no such loops)"""
    halting_loops: float | None = None
    """with halting: mean number of loops that the gate is drawn to (None: half of the loops)"""
    halting_cost: float = 0.01
    """with halting: weight of the divergence from a geometric distribution with that mean (PonderNet)"""
    loss: str = "default"
    """loss of a loop's scores: cross-entropy or squared error, or the name of your own function (FILE.py:NAME)"""
    init_from: str | None = None
    """run folder, model file or shipped model to take the initial weights from (None: random weights)"""
    continue_from: str | None = None
    """finished run to continue for more steps: takes over its weights, optimizer state and step, so that only the
    steps up to num_steps are trained (None: start at step 0)"""
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    curriculum: CurriculumConfig = CurriculumConfig()
    runtime: RuntimeConfig = RuntimeConfig()

    def __post_init__(self) -> None:
        check_fields(self)
        _require_positive(self, "num_steps", "batch_size", "num_examples", "accumulation", "pieces")
        _require_positive(self, "supervised_loops", "backprop_loops")
        valid = len(self.free_loops) <= MAX_LOOP_CHOICES and all(loops >= 0 for loops in self.free_loops)
        require_field(valid, "free_loops", f"at most {MAX_LOOP_CHOICES} numbers of at least 0", self.free_loops)
        examples_seen = self.num_steps * self.batch_size
        for name, count in (("num_steps x batch_size", examples_seen), ("num_examples", self.num_examples or 0)):
            require_field(count <= MAX_INDEX, name, f"at most {MAX_INDEX}", count)
        divides = self.batch_size % self.accumulation == 0
        require_field(divides, "accumulation", f"a divisor of batch_size = {self.batch_size}", self.accumulation)
        both = self.pieces is not None and self.runtime.shard
        require_field(not both, "shard", "false with pieces, because FSDP2 adds gradients in its own order", True)
        pieces = self.pieces or 1
        is_power = pieces & (pieces - 1) == 0 and self.batch_size % pieces == 0
        require_field(is_power, "pieces", f"a power of two that divides batch_size = {self.batch_size}", pieces)
        counts_loops = self.supervision in ("mean", "sum") or self.supervised_loops is None
        none = f"none with supervision {self.supervision!r}"
        require_field(counts_loops, "supervised_loops", none, self.supervised_loops)
        _require_not_negative(self, "halting_cost")
        is_mean = self.halting_loops is None or self.halting_loops > 1
        require_field(is_mean, "halting_loops", "a number above 1", self.halting_loops)
        halts = self.supervision == "halting"
        is_ours = not halts or self.loss == "default"
        require_field(is_ours, "loss", "default with supervision 'halting'", self.loss)
        has_one_origin = self.init_from is None or self.continue_from is None
        require_field(has_one_origin, "continue_from", "none with init_from", self.continue_from)

    def override(self, **values: Any) -> "TrainConfig":
        """Return a copy with some settings changed. Settings of the groups are named directly: `learning_rate=1e-3`.

        `optimizer` and `schedule` also take the name of their kind, such as `optimizer="muon"`.
        """
        groups: dict[str, dict[str, Any]] = {}
        own: dict[str, Any] = {}
        for name, value in values.items():
            if name in ("optimizer", "schedule") and isinstance(value, str):
                groups.setdefault(name, {})["kind"] = value
            elif name in GROUP_OF:
                groups.setdefault(GROUP_OF[name], {})[name] = value
            elif name in _TRAIN_FIELDS:
                own[name] = value
            else:
                known = (*_TRAIN_FIELDS, *GROUP_OF)
                raise InputError(f"{name}: unknown training setting{closest(name, known)}")
        changed = {group: replace(getattr(self, group), **part) for group, part in groups.items()}
        return replace(self, **own, **changed)


GROUPS: dict[str, type] = {
    "optimizer": OptimizerConfig,
    "schedule": ScheduleConfig,
    "curriculum": CurriculumConfig,
    "runtime": RuntimeConfig,
}
_TRAIN_FIELDS = tuple(each.name for each in fields(TrainConfig))
# Every setting but `kind` has a name of its own, so it can be given without its group.
GROUP_OF = {each.name: group for group, cls in GROUPS.items() for each in fields(cls) if each.name != "kind"}


@documents_fields
@dataclass(frozen=True)
class RunConfig:
    """One run: task, model, training settings and seed. Two runs with equal configs are the same run."""

    task: Task
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    seed: int = 0
    """seed of the weights and of the data"""

    def __post_init__(self) -> None:
        check_fields(self)
        require_field(0 <= self.seed < 2**32, "seed", "an integer in 0..2^32-1", self.seed)
        curriculum = self.train.curriculum
        may_vary = self.model.block != "standard" or curriculum.loop_schedule == "fixed"
        fixed = "fixed, because a standard model has no loops"
        require_field(may_vary, "loop_schedule", fixed, curriculum.loop_schedule)
        may_run_free = self.model.block != "standard" or not any(self.train.free_loops)
        require_field(may_run_free, "free_loops", "none: a standard model has no loops", self.train.free_loops)
        has_rows = self.model.supports_loops(self.model.num_loops + max(self.train.free_loops, default=0))
        table = f"conditioning {self.model.conditioning!r} and extrapolation 'extend'"
        zeros = f"zeros alone with {table}, which have no rows for loops beyond the trained ones"
        require_field(has_rows, "free_loops", zeros, self.train.free_loops)
        gated, supervision = self.model.halting_gate, self.train.supervision
        trains_gate = "halting (--train.supervision halting), which trains the halting gate"
        expected = trains_gate if gated else "another value without --model.halting-gate"
        require_field(gated == (supervision == "halting"), "supervision", expected, supervision)
        are_trained = all(choice <= self.model.num_loops for choice in curriculum.loop_choices)
        most = f"at most num_loops = {self.model.num_loops}"
        require_field(are_trained, "loop_choices", most, curriculum.loop_choices)

    @property
    def key(self) -> str:
        """Return a short hash of the settings that differ from their defaults and define the run.

        A new setting with a default therefore leaves the keys of older runs unchanged.
        """
        text = json.dumps(_changed_fields(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    @property
    def folder_name(self) -> str:
        """Return the default name of the run's folder."""
        return f"{self.task.name}-{self.model.block}-{self.key}"

    def to_json(self) -> dict[str, Any]:
        """Return all settings as JSON values: the content of `config.json`."""
        return {"task": encode_task(self.task), **encode(_WithoutTask(self.model, self.train, self.seed))}

    def identity(self) -> dict[str, Any]:
        """Return the settings that define the run: all but `train.runtime`."""
        values = self.to_json()
        del values["train"]["runtime"]
        return values

    def outside_code(self) -> dict[str, str]:
        """Return the SHA-256 of every file outside the package that defines a part of the run, by its file name."""
        parts: list[Any] = [type(self.task)]
        if self.model.layer != "transformer":
            parts.append(plugins.find("model.layer", self.model.layer))
        if self.model.attention_bias not in ("none", "alibi"):
            parts.append(plugins.find("model.attention_bias", self.model.attention_bias))
        if self.train.loss != "default":
            parts.append(plugins.find("train.loss", self.train.loss))
        files = {path.name: part for part in parts if (path := plugins.source_file(part)) is not None}
        return {name: plugins.source_hash(part) or "" for name, part in files.items()}

    @classmethod
    def from_json(cls, data: Any) -> "RunConfig":
        """Return the config that `to_json` or `identity` wrote. Raise InputError for an unknown or ill-typed field.

        The hashes of outside code, which a run's folder stores as `code`, do not belong to a config.
        """
        require(isinstance(data, dict) and "task" in data, "expected an object with a field 'task'")
        rest = {key: value for key, value in data.items() if key not in ("task", "code")}
        return decode(cls, rest, task=decode_task(data["task"]))


@dataclass(frozen=True)
class _WithoutTask:
    """The part of a `RunConfig` that is encoded by its types; a task is encoded with its name."""

    model: ModelConfig
    train: TrainConfig
    seed: int


def differences(first: RunConfig, second: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Return the defining settings in which two runs differ: path -> both values (None where a run lacks the field)."""
    one, other = _identity_by_path(first), _identity_by_path(second)
    both = {path: (one.get(path), other.get(path)) for path in {**one, **other}}
    return {path: pair for path, pair in both.items() if pair[0] != pair[1]}


@lru_cache(maxsize=1024)
def _identity_by_path(config: RunConfig) -> dict[str, Any]:
    return dict(by_path(config.identity()))


def _changed_fields(config: Any) -> dict[str, Any]:
    """Return the defining fields that do not have their default value."""
    changed: dict[str, Any] = {"name": config.name} if isinstance(config, Task) else {}
    for each in fields(config):
        value = getattr(config, each.name)
        if isinstance(value, RuntimeConfig):
            continue
        if is_dataclass(value):
            if part := _changed_fields(value):
                changed[each.name] = part
        elif each.default is MISSING or value != each.default:
            changed[each.name] = value
    return changed
