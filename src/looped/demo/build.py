"""Assemble the demo: one self-contained page with the Sudoku models inside, and one script for each further model.

A page opened from disk may not fetch files, but it may load scripts. So a model beside the page is a `.js` file that
hands its safetensors file over as base64.
"""

import base64
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from looped.demo.theory import theory_data
from looped.demo.wasm import assemble
from looped.models.pretrained import ModelCard, model_card
from looped.tasks.sudoku.task import Difficulty, Sudoku
from looped.utils.files import make_folder, save_text
from looped.utils.shipped import list_models

WEB = files("looped.demo") / "web"
LARGEST_PAGE = 6_500_000
"""bytes of index.html: small enough to be sent and opened at once"""

WORKER = ("friendly", "safetensors", "arena", "conditioning", "engine", "exact", "worker")
PAGE = (
    "friendly", "exact", "ui", "charts", "client", "header", "sudoku_rules", "words_rules", "countdown_rules",
    "tab_sudoku", "tab_words", "tab_countdown", "tab_inside", "tab_theory", "tab_own", "main",
)  # fmt: skip
LEVELS: tuple[Difficulty, ...] = ("easy", "medium", "hard")
PUZZLES_PER_LEVEL = 12
NOT_IN_BROWSER = "language"


@dataclass(frozen=True)
class Demo:
    """The folder that was written."""

    page: Path
    page_bytes: int
    inside: list[str]
    """models in the page itself"""
    beside: list[str]
    """models in files of their own"""


def build_demo(out: Path) -> Demo:
    """Write index.html and the models beside it to the folder `out`, and return what is where."""
    models = [model_card(name) for name in list_models() if not name.startswith(f"{NOT_IN_BROWSER}/")]
    inside = _fitting([model for model in models if model.config.task.name == "sudoku"])
    beside = [model for model in models if model not in inside]
    make_folder(out / "models")
    page = _page(inside, beside)
    for model in beside:
        save_text(out / _script_name(model), f'loopedModel("{model.name}", "{_base64(model.path.read_bytes())}");\n')
    save_text(out / "index.html", page)
    return Demo(out / "index.html", len(page.encode()), [m.name for m in inside], [m.name for m in beside])


def _fitting(models: list[ModelCard]) -> list[ModelCard]:
    """Return the models that go into the page: the best of each block first, while there is room."""
    best_first = sorted(models, key=lambda model: -model.test.value)
    firsts = {model.config.model.block: model for model in reversed(best_first)}
    room = LARGEST_PAGE - 700_000  # for everything else
    chosen = []
    for model in [*firsts.values(), *(each for each in best_first if each not in firsts.values())]:
        room -= 4 * -(-model.num_bytes // 3)
        if room >= 0:
            chosen.append(model)
    return chosen


def _page(inside: list[ModelCard], beside: list[ModelCard]) -> str:
    from looped import __version__

    data = {
        "models": [_entry(model, None) for model in inside] + [_entry(model, _script_name(model)) for model in beside],
        "puzzles": _puzzles(),
    }
    scripts = (
        f'<script type="text/plain" id="model {model.name}">{_base64(model.path.read_bytes())}</script>'
        for model in inside
    )
    parts = {
        "/*STYLE*/": _read("style.css"),
        "<!--VERSION-->": __version__,
        "<!--DATA-->": json.dumps(data, separators=(",", ":"), sort_keys=True).replace("</", "<\\/"),
        "<!--KERNEL-->": _base64(assemble(_read("matmul.wat"))),
        "<!--THEORY-->": theory_data(),
        "<!--WORKER-->": bundle(WORKER),
        "<!--MODELS-->": "\n".join(scripts),
        "<!--PAGE-->": bundle(PAGE),
    }
    page = _read("index.html")
    for place, content in parts.items():
        page = page.replace(place, content, 1)
    return page


def bundle(modules: Iterable[str]) -> str:
    """Return modules as one script: without imports and exports, whose names are then shared."""
    sources = [f"// {name}\n{_read(f'{name}.mjs')}" for name in modules]
    code = re.sub(r"^import\b[^;]*;\n", "", "\n".join(sources), flags=re.MULTILINE)
    code = re.sub(r"^export ", "", code, flags=re.MULTILINE)
    return f'"use strict";\n(() => {{\n{code}}})();'


def _entry(model: ModelCard, script: str | None) -> dict[str, Any]:
    """Return what the page says of a model before it is loaded; `client.mjs` makes the same of a visitor's own file."""
    config = model.config.to_json()
    return {
        "name": model.name,
        "bytes": model.num_bytes,
        "task": model.config.task.name,
        "block": model.config.model.block,
        "loops": model.config.model.num_loops,
        "layers": model.config.model.num_layers,
        "heads": model.config.model.num_heads,
        "parameters": model.parameters,
        "test": asdict(model.test),
        "example": _example(model),
        "config": {"model": config["model"], "task": config["task"]},
        "file": script,
    }


def _example(model: ModelCard) -> str | None:
    """Return the test example that came with a model, as a person types it (None: it is not text)."""
    task = model.config.task
    return task.render(model.example.inputs[0]) if task.spec.kind == "tokens" else None


def _puzzles() -> dict[str, Any]:
    """Return famous puzzles, and some of our own by difficulty from the test split, which no model was trained on."""
    own = {}
    for level in LEVELS:
        task = Sudoku(difficulty=level, pool=0)
        boards = task.sample(0, "test", range(PUZZLES_PER_LEVEL)).inputs
        own[level] = [task.render(board) for board in boards]
    return {"famous": json.loads((files("looped.demo") / "puzzles.json").read_text("utf-8")), **own}


def _script_name(model: ModelCard) -> str:
    return f"models/{model.name.replace('/', '-')}.js"


def _read(name: str) -> str:
    return (WEB / name).read_text("utf-8")


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
