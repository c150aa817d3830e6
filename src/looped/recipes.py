"""Named recipes as data: settings that differ from the defaults, for all tasks, for a task, or for a task and a model.

- `paper`: the settings of the paper (Appendix C)
- `fast`: the settings that learned fastest in our measurements
- `dense`: the string tasks, trained on the answers for all prefixes
- `long`: `dense` with four times the steps, for models with few loops
- `warm`: `dense`, from the weights of a shipped model
- `tune`: a short training of a shipped model, with small batches; for strings a hundredth of the examples of `warm`
- `laptop`: a small version of `fast` for two CPU cores
- `laptop-dense`: the string tasks of `laptop`, trained on the answers for all prefixes

A recipe is a starting point: any flag or `dataclasses.replace` overrides it.
"""

from dataclasses import fields, replace
from typing import Any

from looped.config import ModelConfig, RunConfig
from looped.tasks import task_class
from looped.utils.errors import require_field, require_one_of

_ALL = "*"

# Layers of a standard model and loops of a looped one, in the paper's comparisons and on a laptop.
DEPTHS: dict[str, tuple[int, int]] = {
    "edit-distance": (12, 50),
    "lcs": (12, 50),
    "sudoku": (6, 32),
    "countdown": (6, 32),
    "decision-tree": (12, 12),
    "language": (6, 24),  # the paper's table says 12 layers; its appendix, its code and its parameter counts say 6
}
_NEW_DEPTH = 12, 12  # for a task that is not in the paper
LAPTOP_DEPTH = 4, 8
# The paper chose the widths of its language models by their number of parameters.
_STANDARD_LANGUAGE_MODEL = {"model": {"dim": 512, "num_heads": 8}}

# After 50 loops of backward pass, the gradient of one string is fifty times as long as the others' and dominates the
# batch. Sometimes one explodes, and a single step along it can undo the training so far (dev/LOG.md).
_GRADIENT_LIMITS = {"growth_limit": 4.0, "spike_factor": 4.0}
# The gates of a modulated model multiply every update of their matrices, so its learning rates are lower.
_LOOPED_STRINGS = {"muon_learning_rate": 0.002, "learning_rate": 2e-4, **_GRADIENT_LIMITS}
_MODULATED_STRINGS = {"muon_learning_rate": 0.0015, "learning_rate": 1.5e-4, **_GRADIENT_LIMITS}
# Six lengths, because a jump from 30 to 60 letters destroys what the model has learned.
_SIX_LENGTHS = {"size_schedule": "growing", "size_choices": (0.25, 0.4, 0.55, 0.7, 0.85, 1.0)}

# With answers for all prefixes, a looped model trains at twice the learning rates and needs a fortieth to a fiftieth of
# the paper's strings. Strings reach their full length after half of the steps, which takes two fifths of the time.
_DENSE_STRINGS = {**_SIX_LENGTHS, **_GRADIENT_LIMITS, "batch_size": 128}
_LOOPED_DENSE = {"muon_learning_rate": 0.004, "learning_rate": 4e-4}
_MODULATED_DENSE = {"muon_learning_rate": 0.003, "learning_rate": 3e-4}

# Shipped models know how to compare strings, so longer strings or more loops need a short training at lower rates.
_WARM_STRINGS = {**_DENSE_STRINGS, "size_choices": (0.6, 0.7, 0.8, 0.9, 1.0)}
_LOOPED_WARM = {"muon_learning_rate": 0.003, "learning_rate": 3e-4}
_MODULATED_WARM = {"muon_learning_rate": 0.002, "learning_rate": 2e-4}

_TUNED = {"muon_learning_rate": 0.002, "learning_rate": 2e-4, "warmup_steps": 10, "num_steps": 400}
_TUNED_STRINGS = {
    **_DENSE_STRINGS,
    **_TUNED,
    "size_choices": (0.7, 0.8, 0.9, 1.0),
    "batch_size": 16,
    "curriculum_steps": 200,
}

_FAST: dict[str, dict[str, Any]] = {
    "model": {"dim": 256, "num_heads": 4, "injection": "add", "positions": "rotary", "precision": "bfloat16"},
    "train": {
        "optimizer": "muon",
        "learning_rate": 1e-3,
        "beta2": 0.99,
        "muon_learning_rate": 0.01,  # the usual 0.02 led to loss spikes at r = 50
        "muon_weight_decay": 0.1,
        "warmup_steps": 200,
        "batch_size": 512,
    },
}

_LAPTOP: dict[str, dict[str, Any]] = {
    "model": {"dim": 64, "num_heads": 4, "injection": "add", "positions": "rotary"},
    "train": {
        "optimizer": "muon",
        "learning_rate": 3e-3,
        "muon_learning_rate": 0.01,
        "warmup_steps": 50,
        "batch_size": 64,
        "num_steps": 2700,
        "ema_decay": 0.99,
        "eval_every": 250,
    },
}
_LAPTOP_EDIT_DISTANCE = {"length": 6, "alphabet": 3, "max_letters": 3}
_LAPTOP_LCS = {"length": 8, "alphabet": 3, "max_letters": 3}


def _dense(factor: int = 1) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the recipe `dense` with `factor` times its steps."""

    def strings(curriculum_steps: int, num_steps: int) -> dict[str, dict[str, Any]]:
        steps = {"curriculum_steps": factor * curriculum_steps, "num_steps": factor * num_steps}
        return {"task": {"answers": "prefixes"}, "train": {**_DENSE_STRINGS, **steps}}

    return {
        _ALL: _FAST,
        "edit-distance": strings(6000, 10_000),
        "edit-distance/looped": {"train": _LOOPED_DENSE},
        "edit-distance/modulated": {"train": _MODULATED_DENSE},
        "lcs": strings(4800, 8000),
        "lcs/looped": {"train": _LOOPED_DENSE},
        "lcs/modulated": {"train": _MODULATED_DENSE},
    }


# recipe -> "*", task or task/block -> part of the config -> field -> value
RECIPES: dict[str, dict[str, dict[str, dict[str, Any]]]] = {
    "paper": {
        _ALL: {
            # The paper does not state the precision. The public code multiplies in bfloat16.
            "model": {"dim": 256, "num_heads": 4, "injection": "add", "precision": "bfloat16"},
            "train": {
                "optimizer": "adamw",
                "learning_rate": 1e-4,
                "weight_decay": 0.01,
                "schedule": "linear",
                "warmup_steps": 5,
                "batch_size": 64,
            },
        },
        # 50 epochs of 10^6 (strings), 3 * 10^6 (Sudoku) and 5 * 10^6 (Countdown) examples.
        "edit-distance": {"train": {"num_examples": 1_000_000, "num_steps": 50 * 1_000_000 // 64}},
        "lcs": {"train": {"num_examples": 1_000_000, "num_steps": 50 * 1_000_000 // 64}},
        "sudoku": {
            "train": {"num_examples": 3_000_000, "num_steps": 50 * 3_000_000 // 64, "supervision": "mean"},
        },
        "countdown": {"train": {"num_examples": 5_000_000, "num_steps": 50 * 5_000_000 // 64}},
        # Every 5000 steps the points grow by 5, from 26 to 101, and the dimensions by 1, from 5 to 20.
        "decision-tree": {
            "train": {
                "num_steps": 200_000,
                "supervision": "mean",
                "size_schedule": "growing",
                "size_choices": tuple(points / 101 for points in range(26, 102, 5)),
                "curriculum_steps": 80_000,
            },
        },
        "language": {
            "model": {"dim": 768, "num_heads": 12},
            "train": {
                "num_steps": 100_000,
                "batch_size": 48,
                "learning_rate": 2e-4,
                "final_fraction": 0.3,
                "schedule": "cosine",
                "warmup_steps": 2000,
                "beta2": 0.95,
                "weight_decay": 1e-4,
            },
        },
        "language/standard": _STANDARD_LANGUAGE_MODEL,
    },
    "fast": {
        _ALL: _FAST,
        # A tenth of the paper's samples. With short strings first, learning starts in less than half of the time.
        # Smaller batches and more steps learn more from the same number of strings, at hardly more cost.
        "edit-distance": {
            "train": {**_SIX_LENGTHS, "curriculum_steps": 24_000, "num_steps": 40_000, "batch_size": 128},
        },
        # The settings of the last training. A standard model learns without the limits on gradients.
        "edit-distance/standard": {
            "train": {
                "size_choices": (0.25, 0.5, 1.0),
                "curriculum_steps": 6000,
                "num_steps": 10_000,
                "batch_size": 512,
            },
        },
        "edit-distance/looped": {"train": _LOOPED_STRINGS},
        "edit-distance/modulated": {"train": _MODULATED_STRINGS},
        "lcs": {
            "train": {**_SIX_LENGTHS, "curriculum_steps": 16_800, "num_steps": 28_000, "batch_size": 128},
        },
        "lcs/looped": {"train": _LOOPED_STRINGS},
        "lcs/modulated": {"train": _MODULATED_STRINGS},
        "sudoku": {
            "model": {"positions": "coordinates"},
            "train": {"supervision": "mean"},
        },
        "countdown": {"train": {"num_steps": 20_000}},
        # The paper's curriculum in only four stages, because every size is compiled separately.
        "decision-tree": {
            "train": {
                "num_steps": 20_000,
                "supervision": "mean",
                "batch_size": 256,
                "size_schedule": "growing",
                "size_choices": tuple(points / 101 for points in (26, 51, 76, 101)),
                "curriculum_steps": 8000,
            },
        },
        # 74 million tokens, which take four minutes on one H200 at r = 24.
        "language": {
            "model": {"dim": 768, "num_heads": 12},
            "train": {"num_steps": 1500, "batch_size": 48, "beta2": 0.95},
        },
        "language/standard": _STANDARD_LANGUAGE_MODEL,
    },
    "dense": _dense(),
    # A step of few loops is cheap, and models with few loops go on learning for longer.
    "long": _dense(4),
    "warm": {
        _ALL: _FAST,
        "edit-distance": {
            "task": {"answers": "prefixes"},
            "train": {**_WARM_STRINGS, "curriculum_steps": 2000, "num_steps": 5000},
        },
        "edit-distance/looped": {"train": {**_LOOPED_WARM, "init_from": "edit-distance/looped-r50"}},
        "edit-distance/modulated": {"train": {**_MODULATED_WARM, "init_from": "edit-distance/modulated-r50"}},
        "lcs": {
            "task": {"answers": "prefixes"},
            "train": {**_WARM_STRINGS, "curriculum_steps": 1400, "num_steps": 3500},
        },
        "lcs/looped": {"train": {**_LOOPED_WARM, "init_from": "lcs/looped-r50"}},
        "lcs/modulated": {"train": {**_MODULATED_WARM, "init_from": "lcs/modulated-r50"}},
    },
    # More loops for a trained model take a few thousand examples, so two CPU cores are enough (dev/LOG.md).
    "tune": {
        _ALL: _FAST,
        **{task: {"task": {"answers": "prefixes"}, "train": _TUNED_STRINGS} for task in ("edit-distance", "lcs")},
        "sudoku": {
            "model": {"positions": "coordinates"},
            "train": {**_TUNED, "supervision": "mean", "batch_size": 32},
        },
        **{
            f"{task}/{block}": {"train": {"init_from": f"{task}/{block}-r{DEPTHS[task][1]}"}}
            for task in ("edit-distance", "lcs", "sudoku")
            for block in ("looped", "modulated")
        },
    },
    "laptop": {
        _ALL: _LAPTOP,
        # Short strings first. Without them, looped models often use only the lengths for a long time.
        "edit-distance": {
            "task": _LAPTOP_EDIT_DISTANCE,
            "train": {"size_schedule": "growing", "size_choices": (0.5, 1.0), "curriculum_steps": 700},
        },
        "lcs": {"task": _LAPTOP_LCS},
        "sudoku": {
            "task": {"side": 4},
            "model": {"positions": "coordinates"},
            "train": {"supervision": "mean"},
        },
        # A model this small never learns held-out targets, so it is tested on training targets with unseen numbers.
        "countdown": {"task": {"count": 3, "max_input": 30, "max_target": 60, "test_targets": "training"}},
        "decision-tree": {"task": {"points": 21, "dims": 4, "depth": 2}, "train": {"supervision": "mean"}},
        # GPT-2's vocabulary takes nearly all of the time at any width.
        "language": {"task": {"seq_len": 32}, "train": {"batch_size": 8, "num_steps": 300}},
    },
    "laptop-dense": {
        _ALL: _LAPTOP,
        # Needs more steps than `laptop`, half of them with short strings.
        "edit-distance": {
            "task": {**_LAPTOP_EDIT_DISTANCE, "answers": "prefixes", "answer_weight": 2.0},
            "train": {
                **_GRADIENT_LIMITS,
                "beta2": 0.99,
                "muon_weight_decay": 0.1,
                "warmup_steps": 200,
                "ema_decay": None,
                "size_schedule": "growing",
                "size_choices": (0.5, 1.0),
                "curriculum_steps": 2000,
                "num_steps": 4000,
            },
        },
        "lcs": {"task": {**_LAPTOP_LCS, "answers": "prefixes"}},
    },
}

_SOME_TASKS = ("dense", "long", "warm", "tune", "laptop-dense")


def recipes_for(task: str) -> tuple[str, ...]:
    """Return the names of a task's recipes. Some are for the tasks that they name only."""
    return tuple(name for name in RECIPES if name not in _SOME_TASKS or task in RECIPES[name])


def depth_of(name: str, task: str) -> tuple[int, int]:
    """Return a recipe's layers of a standard model and loops of a looped one."""
    return LAPTOP_DEPTH if name.startswith("laptop") else DEPTHS.get(task, _NEW_DEPTH)


def recipe(name: str, task: str, block: str = "looped") -> RunConfig:
    """Return the config of a recipe for a task and a block (`ModelConfig.block`)."""
    require_one_of("recipe", name, recipes_for(task))
    num_layers, num_loops = depth_of(name, task)
    depth = {"num_layers": num_layers} if block == "standard" else {"num_loops": num_loops}
    model: dict[str, Any] = {"block": block, **depth}
    config = RunConfig(task_class(task)(), ModelConfig(**model))
    for key in (_ALL, task, f"{task}/{block}"):
        part = RECIPES[name].get(key, {})
        config = replace(
            config,
            task=replace(config.task, **part.get("task", {})),
            model=replace(config.model, **part.get("model", {})),
            train=config.train.override(**part.get("train", {})),
        )
    # A recipe that starts from shipped models for some blocks cannot start from random weights for the others.
    needs_origin = any("init_from" in part.get("train", {}) for part in RECIPES[name].values())
    expected = f"looped or modulated for {name}, because no other model is shipped"
    require_field(not needs_origin or config.train.init_from is not None, "model.block", expected, block)
    return config


def configure(name: str, task: str, block: str = "looped", *, seed: int = 0, **settings: Any) -> RunConfig:
    """Return a recipe's config with some settings of the task, the model or the training changed by name."""
    config = recipe(name, task, block)
    of_task = {each.name for each in fields(config.task)}
    of_model = {each.name for each in fields(ModelConfig)}
    parts: dict[str, dict[str, Any]] = {"task": {}, "model": {}, "train": {}}
    for setting, value in settings.items():
        part = "task" if setting in of_task else "model" if setting in of_model else "train"
        parts[part][setting] = value
    return replace(
        config,
        task=replace(config.task, **parts["task"]),
        model=replace(config.model, **parts["model"]),
        train=config.train.override(**parts["train"]),
        seed=seed,
    )
