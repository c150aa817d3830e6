"""The README of an exported model, made from the run's record."""

from pathlib import Path

from looped.inference import Run
from looped.models.pretrained import read_card
from looped.tasks import Task
from looped.tasks.language import Language
from looped.training.run_folder import RunFolder
from looped.utils.shipped import SUFFIX, list_models, shipped_path
from looped.utils.version import __version__


def model_card_text(run: Run) -> str:
    """Return a model card: what the model is, how it was trained and tested, and how to use it."""
    config, task, train = run.config, run.task, run.config.train
    is_text = isinstance(task, Language)
    tags = ["looped-transformer", task.name, *(["text-generation"] if is_text else [])]
    front = ["---", f"library_name: {'transformers' if is_text else 'looped'}", "tags:", *(f"- {tag}" for tag in tags)]
    front += ["pipeline_tag: text-generation"] if is_text else []
    kind = {"standard": "standard", "looped": "looped", "modulated": "looped and modulated"}[config.model.block]
    model, loops = config.model, config.model.block != "standard"
    rows = {
        "parameters": f"{run.model.num_parameters():,}",
        "width, heads, feed-forward width": f"{model.dim}, {model.num_heads}, {model.resolved_ff_dim}",
        "layers in the stack": str(model.num_layers),
        "loops in training": _loops(run),
        "task": task.label,
        "training": f"{run.step:,} steps of {train.batch_size} examples",
        **({"text": f"{task.text}, vocabulary {task.vocabulary}"} if is_text else {}),
        **_scores(run),
    }
    table = ["| what | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]
    use = (_TEXT_USE if is_text else _OTHER_USE).format(
        inputs=_inputs(task),
        loops=f", num_loops={model.num_loops}" if loops else "",
        dial=_DIAL if loops and is_text else "",
    )
    lines = [
        *front, "---", "", f"# {Path(run.name).resolve().name}", "",
        f"A {kind} Transformer for {task.name}, trained and exported with looped {__version__}.{_LOOPED * loops}", "",
        *table, "", "## Use", "", use,
    ]  # fmt: skip
    return "\n".join(lines)


def _inputs(task: Task) -> str:
    """Return in words what the model takes."""
    spec = task.spec
    if spec.kind == "tokens":
        return f"a tensor of shape (batch, {spec.seq_len}) with integers from 0 to {spec.input_size - 1}"
    return f"a tensor of shape (batch, {spec.seq_len}, {spec.input_size}) with numbers"


def _loops(run: Run) -> str:
    curriculum = run.config.train.curriculum
    if curriculum.loop_schedule == "fixed":
        return str(run.config.model.num_loops)
    return f"{curriculum.loop_schedule}: {', '.join(map(str, curriculum.loop_choices))}"


def _scores(run: Run) -> dict[str, str]:
    """Return the recorded test score of a model file, or the validation score of a finished run."""
    path = shipped_path(run.name) if run.name in list_models() else Path(run.name)
    if path.suffix == SUFFIX:
        test = read_card(path).test
        interval = f"95 % interval {test.low:.4f} to {test.high:.4f}"
        return {f"test {test.metric}": f"{test.value:.4f} ({interval}) on {test.size:,} examples, {test.loops} loops"}
    result = RunFolder(run.name).read_result()
    if result is None or result.validation is None:
        return {}
    return {f"validation {run.task.metric}": f"{result.validation:.4f}"}


_LOOPED = (
    " A looped Transformer applies one stack of layers again and again; the number of loops can be chosen at run time."
)
_DIAL = "`num_loops` is an argument of `forward` and `generate` and may exceed the number in training. "

_TEXT_USE = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("FOLDER", trust_remote_code=True)
model = AutoModelForCausalLM.from_pretrained("FOLDER", trust_remote_code=True)
tokens = tokenizer("The city of", return_tensors="pt", return_token_type_ids=False)
text = model.generate(**tokens, max_new_tokens=50, do_sample=True, top_p=0.95{loops})
print(tokenizer.decode(text[0]))
```

{dial}`trust_remote_code` runs `modeling_looped.py` of this folder: read it first.
"""

_OTHER_USE = """```python
from looped.export.hub import LoopedModel

model = LoopedModel.from_pretrained("FOLDER")
scores = model(inputs{loops})
```

`inputs` is {inputs}. With the `task` of `config.json`,
`looped.make_task(**task)` makes the task: its `parse` reads a question, and its `answer` writes an answer.
"""
