"""Named recipes as data: what differs from the config's defaults, for every task and then for single ones.

`paper` is what the paper states (Appendix C), `fast` what learned fastest in our measurements, `laptop` a small
version of `fast` for two CPU cores. A recipe is a starting point: any flag or `dataclasses.replace` overrides it.
"""

from dataclasses import replace
from typing import Any

from looped.config import RunConfig
from looped.errors import unknown
from looped.tasks import task_class

_ALL = "*"

# recipe -> task (or all) -> part of the config -> field -> value
RECIPES: dict[str, dict[str, dict[str, dict[str, Any]]]] = {
    "paper": {
        _ALL: {
            "model": {"dim": 256, "num_heads": 4, "injection": "add"},
            "train": {"optimizer": "adamw", "learning_rate": 1e-4, "weight_decay": 0.01, "warmup_steps": 5},
        },
        # 10^6 examples, 50 epochs, batch 64.
        "edit-distance": {"train": {"num_examples": 1_000_000, "num_steps": 781_250}},
    },
    "fast": {
        _ALL: {
            "model": {"dim": 256, "num_heads": 4, "injection": "add", "positions": "rotary", "precision": "bfloat16"},
            "train": {
                "optimizer": "muon",
                "learning_rate": 1e-3,
                "muon_learning_rate": 0.02,
                "warmup_steps": 200,
                "batch_size": 512,
            },
        },
    },
    "laptop": {
        _ALL: {
            "model": {"dim": 64, "num_heads": 4, "injection": "add", "positions": "rotary"},
            "train": {
                "optimizer": "muon",
                "learning_rate": 3e-3,
                "muon_learning_rate": 0.02,
                "warmup_steps": 50,
                "batch_size": 128,
                "num_steps": 2000,
            },
        },
        "edit-distance": {"task": {"length": 6, "alphabet": 3, "max_letters": 3}},
    },
}


def recipe(name: str, task: str) -> RunConfig:
    """The config that a recipe gives for a task."""
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    parts = [RECIPES[name].get(which, {}) for which in (_ALL, task)]
    config = RunConfig(task_class(task)())
    for part in parts:
        config = replace(
            config,
            task=replace(config.task, **part.get("task", {})),
            model=replace(config.model, **part.get("model", {})),
            train=replace(config.train, **part.get("train", {})),
        )
    return config
