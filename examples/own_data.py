"""Your own data: train on a CSV, test on another file, see how a bad row is refused. Run it, or on the command line:

looped train lcs --recipe laptop --task.length 4 --task.file pairs.csv --out runs/pairs
looped eval runs/pairs --task.file more.jsonl
"""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

import looped


def pairs(number: int, seed: int, *, shuffled: bool) -> list[tuple[str, str]]:
    """Return pairs of random words. If `shuffled`, the second word has the letters of the first."""
    rng = np.random.default_rng(seed)
    words = rng.choice(list("abc"), (2, number, 4))
    others = rng.permuted(words[0], axis=1) if shuffled else words[1]
    return [("".join(first), "".join(second)) for first, second in zip(words[0], others, strict=True)]


def write_csv(path: Path, rows: list[tuple[str, str]]) -> None:
    """Write the columns that LCS reads. The answers are computed."""
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([("first", "second"), *rows])


if __name__ == "__main__":
    folder = Path("data")
    folder.mkdir(exist_ok=True)
    write_csv(folder / "pairs.csv", pairs(10_000, seed=0, shuffled=False))
    with open(folder / "more.jsonl", "w") as file:
        file.writelines(
            json.dumps({"first": one, "second": other}) + "\n" for one, other in pairs(500, seed=1, shuffled=True)
        )

    # A hash of its content decides whether a row trains, validates or tests, so equal rows are never in two splits.
    small = {"length": 4, "alphabet": 3, "max_letters": 3, "dim": 64, "num_loops": 4, "num_steps": 400}
    config = looped.configure("laptop", "lcs", file=str(folder / "pairs.csv"), **small)
    looped.train(config, "runs/pairs", quiet=True)
    run = looped.load("runs/pairs")
    print(run.evaluate(loops=(2, 4, 8)))

    # Test the same model on every row of another file. Whether its rows are new to the model is up to you.
    task = replace(run.task, file=str(folder / "more.jsonl"), file_role="test")
    print(looped.evaluate(run.model, task, loops=(2, 4, 8)))

    (folder / "bad.csv").write_text("first,second\nabca,ccba\nabca,ccbz\n")
    try:
        replace(task, file=str(folder / "bad.csv")).sample(0, "test", [0])
    except looped.InputError as error:
        print("refused:", error)
