"""In-context learning of decision trees (the paper's appendix, "In-Context Learning").

An example is a sequence of vectors x1, y1, x2, y2, ..., xk, where a value y is written as (y, 0, ..., 0). The model
predicts the value of every point at its x, from the points before it. The last point is the query.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numba import uint64

from looped.tasks import rng
from looped.tasks.base import (
    Batch,
    Spec,
    Split,
    draw_keys,
    split_buckets,
    summary,
    typed_fields,
)
from looped.tasks.files import FileTask, field_of
from looped.tasks.jit import compiled
from looped.utils.errors import InputError, require, require_within


@dataclass(frozen=True)
class DecisionTree(FileTask):
    """Value of a query point under a hidden tree, which branches right where a coordinate is positive."""

    name: ClassVar[str] = "decision-tree"
    metric: ClassVar[str] = "squared_error"
    higher_is_better: ClassVar[bool] = False

    points: int = 101
    """number of points in a prompt, including the query"""
    dims: int = 20
    """dimensions of a point"""
    depth: int = 4
    """depth of the tree, which has 2^depth leaves"""
    shrink: Literal["points-and-dims", "points"] = "points-and-dims"
    """quantities that a curriculum reduces: points and dimensions, or points only (the trees of the public code)"""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_within("task.points", self.points, 1, 4096)
        require_within("task.dims", self.dims, 1, 4096)
        require_within("task.depth", self.depth, 1, 12)

    @property
    def size(self) -> int:
        return self.points

    @property
    def spec(self) -> Spec:
        return Spec("vectors", self.dims, 1, self.seq_len_at(self.points), causal=True)

    def seq_len_at(self, size: int) -> int:
        return 2 * size - 1

    def dims_at(self, size: int) -> int:
        """Return the used dimensions of a prompt of `size` points, in proportion to the points unless `shrink` says no.

        By default 26, 31, ..., 101 points have 5, 6, ..., 20 dimensions.
        """
        return self.dims if self.shrink == "points" else max(1, self.dims * size // self.points)

    def generate(self, seed: int, split: Split, indices: Sequence[int] | np.ndarray, size: int | None = None) -> Batch:
        inputs, values, _, _ = self._draw(seed, split, indices, self.checked_size(size))
        return self.from_rows(inputs, values)

    def read_row(self, row: dict[str, Any]) -> tuple[np.ndarray, ...]:
        """Return the inputs and the values of the points of a row with the lists x and y. A given tree is checked."""
        xs, ys = field_of(row, "x", list), field_of(row, "y", list)
        if "coordinates" in row and "leaves" in row:
            lists = {name: field_of(row, name, list) for name in ("coordinates", "leaves")}
            self.verify({"x": xs, "y": ys, **lists})
        _require_numbers("y", ys, self.points)
        require(len(xs) == self.points, f"x: expected {self.points} points, got {len(xs)}")
        inputs = np.zeros((2 * self.points - 1, self.dims), dtype=np.float32)
        for k, x in enumerate(xs):
            _require_numbers(f"point {k + 1}", x, self.dims)
            inputs[2 * k] = x
        inputs[1::2, 0] = ys[:-1]
        return inputs, np.array(ys, dtype=np.float32)

    def from_rows(self, *arrays: np.ndarray) -> Batch:
        inputs, values = arrays
        targets = np.zeros((*inputs.shape[:2], 1), dtype=np.float32)
        targets[:, ::2, 0] = values
        return Batch(inputs, targets, self.counted(inputs))

    def counted(self, inputs: np.ndarray) -> np.ndarray:
        mask = np.zeros(inputs.shape[:2], dtype=np.bool_)
        mask[:, ::2] = True
        return mask

    def score(self, prediction: np.ndarray, batch: Batch) -> dict[str, np.ndarray]:
        """Return the squared error at the query, as it is and divided by the dimensions (probably the paper's unit)."""
        error = self.curve(prediction, batch)[:, -1]
        return {"squared_error": error, "squared_error_over_dims": error / self.dims}

    def curve(self, prediction: np.ndarray, batch: Batch) -> np.ndarray:
        """Return (batch, points) squared errors. Column k holds the error after k examples."""
        return np.square(np.asarray(prediction, dtype=np.float64) - batch.targets)[:, ::2, 0]

    def render(self, inputs: np.ndarray) -> str:
        values = [_shortest(y) for y in inputs[1::2, 0]] + ["?"]
        points = (" ".join(str(_shortest(number)) for number in x) for x in inputs[::2])
        return "\n".join(f"{x} -> {y}" for x, y in zip(points, values, strict=True))

    def parse(self, text: str) -> np.ndarray:
        lines = [line for line in re.split(r"[\n;]", text) if line.strip()]
        require(1 <= len(lines) <= self.points, f"expected 1 to {self.points} points, got {len(lines)}")
        inputs = np.zeros((2 * len(lines) - 1, self.dims), dtype=np.float32)
        for k, line in enumerate(lines):
            x, arrow, y = line.partition("->")
            where = f"in point {k + 1}: {line.strip()!r}"
            require(bool(arrow), f"expected a point and its value such as 0.5 -1 -> 2, got no arrow {where}")
            inputs[2 * k] = self._numbers(x.split(), self.dims, where)
            if k < len(lines) - 1:
                inputs[2 * k + 1, 0] = self._numbers(y.split(), 1, where)[0]
            else:
                require(y.strip() == "?", f"expected ? as the last value, got {y.strip()!r} {where}")
        return inputs

    def answer(self, outputs: np.ndarray) -> str:
        return f"{float(outputs[-1, 0]):.4f}"

    def describe(self, inputs: np.ndarray, outputs: np.ndarray) -> dict[str, Any]:
        return {"x": _shortest(inputs[::2]), "y": _shortest(outputs[::2, 0])}

    def examples(self, seed: int, split: Split, indices: Sequence[int] | np.ndarray) -> list[dict[str, Any]]:
        """Return the points and their tree: nodes level by level from the root, leaves from left to right."""
        if self.file is not None:  # the tree may be unknown
            return super().examples(seed, split, indices)
        inputs, values, coordinates, leaves = self._draw(seed, split, indices, self.points)
        return [
            {"x": _shortest(x), "y": _shortest(y), "coordinates": axes.tolist(), "leaves": _shortest(leaf_values)}
            for x, y, axes, leaf_values in zip(inputs[:, ::2], values, coordinates, leaves, strict=True)
        ]

    def verify(self, example: dict[str, Any]) -> None:
        xs, ys, coordinates, leaves = typed_fields(example, x=list, y=list, coordinates=list, leaves=list)
        _require_numbers("y", ys, self.points)
        _require_numbers("leaves", leaves, 2**self.depth)
        require(
            len(coordinates) == 2**self.depth - 1
            and all(type(axis) is int and 0 <= axis < self.dims for axis in coordinates),
            f"coordinates: expected {2**self.depth - 1} in 0..{self.dims - 1}, got {str(coordinates)[:60]}",
        )
        require(len(xs) == self.points, f"x: expected {self.points} points, got {len(xs)}")
        for k, (x, y) in enumerate(zip(xs, ys, strict=True)):
            _require_numbers(f"point {k + 1}", x, self.dims)
            expected = tree_value(coordinates, leaves, x)
            require(y == expected, f"y of point {k + 1}: expected {expected}, got {y}")

    def statistics(self, examples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        values = np.array([example["y"] for example in examples])
        reached = [len(set(example["y"])) for example in examples]
        return {
            "y": {"mean": float(values.mean()), "variance": float(values.var())},
            "different_values_in_a_prompt": summary(reached),
        }

    def _draw(self, seed: int, split: Split, indices: Sequence[int] | np.ndarray, size: int) -> tuple[np.ndarray, ...]:
        """Return inputs, values of the points, coordinates of the nodes and values of the leaves, by example."""
        keys = draw_keys(seed, split, indices)
        inputs = np.zeros((len(indices), 2 * size - 1, self.dims), dtype=np.float32)
        values = np.empty((len(indices), size), dtype=np.float32)
        coordinates = np.empty((len(indices), 2**self.depth - 1), dtype=np.int64)
        leaves = np.empty((len(indices), 2**self.depth), dtype=np.float32)
        _draw_prompts(inputs, values, coordinates, leaves, *keys, *split_buckets(split), self.dims_at(size))
        return inputs, values, coordinates, leaves

    def _numbers(self, words: list[str], count: int, where: str) -> list[float]:
        try:
            numbers = [float(word) for word in words]
        except ValueError:
            raise InputError(f"expected numbers, got {' '.join(words)!r} {where}") from None
        require(len(numbers) == count, f"expected {count} number{'s' * (count > 1)}, got {len(numbers)} {where}")
        is_finite = bool(np.isfinite(np.array(numbers, dtype=np.float32)).all())
        require(is_finite, f"expected finite numbers, got {' '.join(words)!r} {where}")
        return numbers


def tree_value(coordinates: Sequence[int], leaves: Sequence[float], x: Sequence[float], node: int = 0) -> float:
    """Return the tree's value at x by its recursive definition, which checks the fast generator."""
    if node >= len(coordinates):
        return leaves[node - len(coordinates)]
    left, right = 2 * node + 1, 2 * node + 2
    return tree_value(coordinates, leaves, x, right if x[coordinates[node]] > 0 else left)


def _require_numbers(name: str, values: Any, count: int) -> None:
    require(
        isinstance(values, list)
        and len(values) == count
        and all(type(value) is float and math.isfinite(value) for value in values),
        f"{name}: expected a list of {count} numbers, got {str(values)[:60]}",
    )


def _shortest(numbers: np.ndarray) -> Any:
    """Return float32 numbers as Python floats with the fewest digits that identify them."""
    return np.asarray(numbers, dtype=np.float32).astype(str).astype(np.float64).tolist()


@compiled(nogil=True)
def _draw_prompts(inputs, values, coordinates, leaves, seed, split, indices, first_bucket, end_bucket, dims):
    """Draw trees and points. Draw each tree again until its content hash is in one of the split's buckets."""
    num_points = values.shape[1]
    for row in range(len(indices)):
        state = rng.start(seed, split, indices[row])
        bucket = np.int64(-1)
        while bucket < first_bucket or bucket >= end_bucket:
            state = _draw_tree(state, coordinates[row], leaves[row], dims)
            bucket = _content_bucket(coordinates[row], leaves[row])
        for k in range(num_points):
            state = _fill_normal(state, inputs[row, 2 * k, :dims])
            values[row, k] = _evaluate(coordinates[row], leaves[row], inputs[row, 2 * k])
            if k < num_points - 1:
                inputs[row, 2 * k + 1, 0] = values[row, k]


@compiled(nogil=True)
def _draw_tree(state, coordinates, leaves, dims):
    for node in range(len(coordinates)):
        state, coordinates[node] = rng.below(state, dims)
    return _fill_normal(state, leaves)


@compiled(nogil=True)
def _content_bucket(coordinates, leaves):
    digest = uint64(len(leaves))
    for coordinate in coordinates:
        digest = rng.absorb(digest, coordinate)
    for bits in leaves.view(np.uint32):
        digest = rng.absorb(digest, bits)
    return rng.bucket(digest)


@compiled(nogil=True)
def _evaluate(coordinates, leaves, x):
    node = 0
    while node < len(coordinates):
        node = 2 * node + (2 if x[coordinates[node]] > 0 else 1)
    return leaves[node - len(coordinates)]


@compiled(nogil=True)
def _fill_normal(state, out):
    """Fill `out` with independent standard normal numbers (Box-Muller) and return the next state."""
    for i in range(0, len(out), 2):
        state, uniform = rng.unit(state)
        state, angle = rng.unit(state)
        radius = np.sqrt(-2.0 * np.log(1.0 - uniform))
        out[i] = radius * np.cos(2.0 * np.pi * angle)
        if i + 1 < len(out):
            out[i + 1] = radius * np.sin(2.0 * np.pi * angle)
    return state
