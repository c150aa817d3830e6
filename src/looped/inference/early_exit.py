"""Early exit: stop looping as soon as an answer has settled.

A rule is written KIND:LIMIT. It looks at every loop of an example (or of a token of a text) and says when to stop:

- `stable:3`: the answer has been the same for 3 loops
- `entropy:0.1`: the entropy of every counted position is below 0.1 nats
- `change:0.01`: the state moved by less than 0.01 of its size
- `budget:12`: 12 loops are done
- `gate:0.9`: at every counted position, the learned halting gate has stopped with a probability of at least 0.9
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from looped.models import LoopModel, LoopStack
from looped.utils.errors import InputError, require, require_field, require_type

Reader = Callable[[Bool[Tensor, " rows"]], Float[Tensor, "chosen classes"]]


class Watcher(ABC):
    """Follow the examples of a batch from loop to loop, and say which are done."""

    limits: ClassVar[str] = "a number above 0"
    """the limits that the rule can have, in words"""
    reads_scores: ClassVar[bool] = False
    """whether the rule looks at the scores, which then have to be computed in every loop"""

    def __init__(self, limit: float) -> None:
        self.limit = limit

    @classmethod
    def allows(cls, limit: float) -> bool:
        """Return whether the rule can have this limit."""
        return math.isfinite(limit) and limit > 0

    @abstractmethod
    def __call__(
        self,
        state: Float[Tensor, "batch seq dim"],
        scores: Float[Tensor, "rows classes"] | None,
        owners: Int[Tensor, " rows"],
        halting: Float[Tensor, " rows"] | None,
    ) -> Bool[Tensor, " batch"]:
        """Return which examples are done after one more loop.

        `scores` has one row for each counted position, or is None for a rule that does not read it. `owners` has the
        example of each row. `halting` has the log-odds of the halting gate for each row, or is None if the model has no
        gate.
        """

    def look(self, model: LoopModel, state: Tensor, rows: Tensor, owners: Tensor) -> tuple[Tensor, Reader]:
        """Return which examples are done, and a function that returns the scores of chosen rows of the state.

        If the rule does not read scores, they are computed for the chosen rows only.
        """
        found = model.read_out(rows) if self.reads_scores else None
        done = self(state, found, owners, halting_at(model, rows))
        return done, lambda chosen: model.read_out(rows[chosen]) if found is None else found[chosen]

    def keep(self, examples: Bool[Tensor, " batch"], rows: Bool[Tensor, " rows"]) -> None:
        """Forget the examples that left the batch."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(self, name, value[rows if name.endswith("rows") else examples])


class Counting(Watcher):
    """A rule whose limit is a number of loops."""

    limits = "a whole number above 0"

    @classmethod
    def allows(cls, limit: float) -> bool:
        return super().allows(limit) and limit == int(limit)


class Stable(Counting):
    """Stop if the classes of all counted positions have been the same for `limit` loops."""

    reads_scores = True

    def __init__(self, limit: float) -> None:
        super().__init__(limit)
        self.answer_rows: Tensor | None = None
        self.streak: Tensor | None = None

    def __call__(self, state: Tensor, scores: Tensor | None, owners: Tensor, halting: Tensor | None) -> Tensor:
        assert scores is not None
        answers = scores.argmax(dim=-1)
        if self.answer_rows is None or self.streak is None:
            self.streak = torch.ones(len(state), dtype=torch.long, device=state.device)
        else:
            same = _all_of_each(answers == self.answer_rows, owners, len(state))
            self.streak = torch.where(same, self.streak + 1, 1)
        self.answer_rows = answers
        return self.streak >= self.limit


class LowEntropy(Watcher):
    """Stop if the entropy of the class probabilities is below `limit` nats at every counted position."""

    reads_scores = True

    def __call__(self, state: Tensor, scores: Tensor | None, owners: Tensor, halting: Tensor | None) -> Tensor:
        assert scores is not None
        logarithms = scores.float().log_softmax(dim=-1)
        entropies = -(logarithms.exp() * logarithms).sum(dim=-1)
        return _all_of_each(entropies < self.limit, owners, len(state))


class SmallChange(Watcher):
    """Stop if the state of an example moved by less than `limit` times its size."""

    def __init__(self, limit: float) -> None:
        super().__init__(limit)
        self.before: Tensor | None = None

    def __call__(self, state: Tensor, scores: Tensor | None, owners: Tensor, halting: Tensor | None) -> Tensor:
        before, self.before = self.before, state
        if before is None:
            return torch.zeros(len(state), dtype=torch.bool, device=state.device)
        return (state - before).flatten(1).norm(dim=1) < self.limit * state.flatten(1).norm(dim=1)


class Budget(Counting):
    """Stop after `limit` loops."""

    def __init__(self, limit: float) -> None:
        super().__init__(limit)
        self.loops = 0

    def __call__(self, state: Tensor, scores: Tensor | None, owners: Tensor, halting: Tensor | None) -> Tensor:
        self.loops += 1
        return torch.full((len(state),), self.loops >= self.limit, device=state.device)


class Gate(Watcher):
    """Stop if the halting gate has stopped every counted position with a probability of at least `limit`."""

    limits = "a probability between 0 and 1"

    def __init__(self, limit: float) -> None:
        super().__init__(limit)
        self.going_rows: Tensor | None = None  # log-probability that no loop has stopped

    @classmethod
    def allows(cls, limit: float) -> bool:
        return 0 < limit < 1

    def __call__(self, state: Tensor, scores: Tensor | None, owners: Tensor, halting: Tensor | None) -> Tensor:
        assert halting is not None
        going = F.logsigmoid(-halting.float())
        self.going_rows = going if self.going_rows is None else self.going_rows + going
        return _all_of_each(self.going_rows <= math.log1p(-self.limit), owners, len(state))


WATCHERS: dict[str, type[Watcher]] = {
    "stable": Stable,
    "entropy": LowEntropy,
    "change": SmallChange,
    "budget": Budget,
    "gate": Gate,
}


RULES = "stable:LOOPS, entropy:NATS, change:FRACTION, budget:LOOPS or gate:PROBABILITY"


@dataclass(frozen=True)
class ExitRule:
    """When to stop looping: a kind of `WATCHERS` and its limit."""

    kind: str
    limit: float

    def __post_init__(self) -> None:
        require_field(self.kind in WATCHERS, "exit", f"one of {', '.join(WATCHERS)}", repr(self.kind))
        watcher = WATCHERS[self.kind]
        require_field(watcher.allows(self.limit), "exit", f"{self.kind} with {watcher.limits}", self)

    def __str__(self) -> str:
        return f"{self.kind}:{self.limit:g}"

    @classmethod
    def parse(cls, text: str) -> "ExitRule":
        """Return the rule that a text such as `stable:3` means."""
        require_type("exit", text, str)
        kind, _, number = text.partition(":")
        require_field(kind in WATCHERS, "exit", f"{RULES}, such as stable:3", repr(text))
        try:
            limit = float(number)
        except ValueError:
            raise InputError(f"exit: expected {kind} with {WATCHERS[kind].limits}, got {text!r}") from None
        return cls(kind, limit)

    def watcher(self) -> Watcher:
        """Return a new watcher for one batch."""
        return WATCHERS[self.kind](self.limit)


def _all_of_each(rows: Bool[Tensor, " rows"], owners: Int[Tensor, " rows"], batch: int) -> Bool[Tensor, " batch"]:
    """Return for each example whether all of its rows are True."""
    exceptions = torch.zeros(batch, dtype=torch.long, device=rows.device)
    return exceptions.index_add_(0, owners, (~rows).long()) == 0


@dataclass(frozen=True)
class EarlyAnswers:
    """The answers of a batch, each read after its own number of loops."""

    scores: Float[Tensor, "batch seq out"]
    """class scores or values at the counted positions, and zeros elsewhere"""
    loops: Tensor
    """(batch,) or (batch, seq): number of loops of each example, or of each token of a text"""


@torch.no_grad()
def answer_early(
    model: LoopModel,
    inputs: Shaped[Tensor, "batch seq *size"],
    counted: Bool[Tensor, "batch seq"],
    rule: ExitRule,
    num_loops: int | None = None,
) -> EarlyAnswers:
    """Answer a batch of examples. An example leaves the batch when the rule stops it, and the others go on.

    No example runs more than `num_loops` loops (default: the trained number). Where the engine computes several loops
    at once, an example that leaves between two of them still has the answer of its own loop.
    """
    require_supported(model, rule)
    stack, most = model.stack, model.stack.checked_loops(num_loops)
    batch, watch = _ShrinkingBatch(stack, model.embed(inputs), most), rule.watcher()
    remaining = torch.arange(len(inputs), device=inputs.device)
    scores = torch.zeros(*inputs.shape[:2], model.spec.output_size, dtype=stack.dtype, device=inputs.device)
    loops = torch.zeros(len(inputs), dtype=torch.long, device=inputs.device)
    owners, places = counted.nonzero(as_tuple=True)
    for loop, state in enumerate(batch, 1):
        done, read = watch.look(model, state, state[owners, places], owners)
        done = done | (loop == most)
        if not done.any():
            continue
        leaving, staying = done[owners], ~done
        scores[remaining[owners[leaving]], places[leaving]] = read(leaving)
        loops[remaining[done]] = loop
        if not staying.any():
            break
        watch.keep(staying, ~leaving)
        batch.keep(staying)
        remaining = remaining[staying]
        owners, places = (staying.cumsum(0) - 1)[owners[~leaving]], places[~leaving]
    return EarlyAnswers(scores, loops)


class _ShrinkingBatch:
    """The states of a batch after every loop, while examples leave.

    An engine may be ahead by some loops. They are computed in vain for the examples that leave.
    """

    def __init__(self, stack: LoopStack, embeddings: Float[Tensor, "batch seq dim"], num_loops: int) -> None:
        self.num_loops, self.embeddings = num_loops, embeddings
        self._advance = stack.advancer(num_loops, embeddings)
        self._states = [stack.start(embeddings)]  # the last one, and then those ahead

    def __iter__(self) -> Iterator[Float[Tensor, "batch seq dim"]]:
        for t in range(self.num_loops):
            if len(self._states) == 1:
                self._states += self._advance(self._states[0], self.embeddings, t)
            del self._states[0]
            yield self._states[0]

    def keep(self, examples: Bool[Tensor, " batch"]) -> None:
        """Forget the examples that left the batch."""
        rows = examples.nonzero()[:, 0]
        self.embeddings, self._states = self.embeddings[rows], [state[rows] for state in self._states]


@torch.no_grad()
def read_early(
    model: LoopModel,
    tokens: Int[Tensor, "batch seq"],
    rule: ExitRule,
    num_loops: int | None = None,
    skipped: Literal["last", "computed"] = "last",
) -> EarlyAnswers:
    """Read whole texts with an exit for each token, as generation does token by token, to measure what it costs.

    In a loop that an earlier token skipped, a token attends to that token's keys and values of its last loop (`last`).
    With `computed`, every token runs all loops and only its scores are read early. Neither saves time here.
    """
    require_supported(model, rule)
    require(model.stack.causal, "model: expected a causal model")
    stack, most = model.stack, model.stack.checked_loops(num_loops)
    embeddings = model.embed(tokens)
    prepared = stack.prepare(most, tokens.shape[1], embeddings.device)
    state, watch = stack.start(embeddings), rule.watcher()
    owners = torch.arange(tokens.numel(), device=tokens.device)
    scores = torch.zeros(*tokens.shape, model.spec.output_size, dtype=stack.dtype, device=tokens.device)
    loops = torch.zeros_like(tokens)
    slots = [_LastSeen(loops) for _ in stack.layers] if skipped == "last" else None
    for loop in range(1, most + 1):
        state = stack.loop(state, embeddings, prepared, loop - 1, slots)
        found = model.read_out(state)
        flat = state.flatten(0, 1)
        done = watch(flat[:, None], found.flatten(0, 1), owners, halting_at(model, flat)).view_as(tokens)
        done |= loop == most
        leaving = done & (loops == 0)
        scores[leaving] = found[leaving]
        loops[leaving] = loop
        if (loops > 0).all():
            break
    return EarlyAnswers(scores, loops)


class _LastSeen:
    """The cache of one layer: a token that has stopped (`loops` above 0) keeps its keys and values."""

    def __init__(self, loops: Int[Tensor, "batch seq"]) -> None:
        self.loops = loops
        self.before: tuple[Tensor, Tensor] | None = None

    def __call__(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if self.before is not None:
            stopped = (self.loops > 0)[:, None, :, None]
            key, value = torch.where(stopped, self.before[0], key), torch.where(stopped, self.before[1], value)
        self.before = key, value
        return self.before


def halting_at(model: LoopModel, rows: Float[Tensor, "rows dim"]) -> Float[Tensor, " rows"] | None:
    """Return the log-odds of the halting gate for some states, or None if the model has no gate."""
    return model.halting_logits(rows) if model.config.halting_gate else None


def require_supported(model: LoopModel, rule: ExitRule) -> None:
    """Raise InputError if the rule needs what the model does not have."""
    if rule.kind == "gate" and not model.config.halting_gate:
        expected = "another rule for a model without a halting gate (--model.halting-gate)"
        raise InputError(f"exit: expected {expected}, got {rule}")
    if model.spec.kind == "vectors" and rule.kind in ("stable", "entropy"):
        raise InputError(f"exit: expected change or budget for a task without classes, got {rule}")
    # Answers are read at single positions, but a coda attends to all of them.
    require(model.coda is None, f"model.coda_layers: expected 0 with an early exit, got {model.config.coda_layers}")
