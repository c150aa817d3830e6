"""A task of your own: are most of the bits ones? Train it with `looped train examples/own_task.py:Majority`.

Or run this file: it trains a small model for a few seconds and prints what the model answers.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from looped.tasks import Batch, Spec, Task, masked_accuracy


@dataclass(frozen=True)
class Majority(Task):
    """Are more than half of the bits ones?"""

    name: ClassVar[str] = "majority"

    length: int = 15
    """number of bits"""

    @property
    def spec(self) -> Spec:
        return Spec("tokens", input_size=2, output_size=2, seq_len=self.length)

    def seq_len_at(self, size: int) -> int:  # a smaller size has fewer bits, for a curriculum
        return size

    def sample(self, seed, split, indices, size=None) -> Batch:
        length = self.checked_size(size)

        def draw(rng: np.random.Generator):
            bits = rng.integers(2, size=length)
            return bits, np.full(length, 2 * bits.sum() > length)  # the answer is read at the last position

        return self.draw_batch(seed, split, indices, draw)  # no example is in two splits

    def score(self, prediction, batch):
        return {"accuracy": masked_accuracy(prediction, batch)}

    def solve(self, inputs):  # optional: `looped solve` and `looped data check` compare with it
        return str(int(2 * inputs.sum() > len(inputs)))


if __name__ == "__main__":
    from looped import configure, load, register, train

    register(Majority)
    config = configure("laptop", "majority", dim=32, num_loops=3, num_steps=60, eval_size=200)
    result = train(config, "runs/majority")
    run = load("runs/majority")
    print("validation accuracy", result.validation)
    for question in ("1 0 1 1 0 0 1 0 1 1 0 1 0 0 1", "0 0 1 0 1 0 0 1 0 0 0 1 1 0 0"):
        print(question, "->", run.answer(question), "expected", run.task.solve(run.task.parse(question)))
