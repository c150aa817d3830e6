"""`looped generate RUN`."""

import sys
import time
from dataclasses import dataclass

from looped.cli.args import AnyRun, parse, show
from looped.utils.text import plural
from looped.utils.types import Device


@dataclass(frozen=True)
class GenerateCommand:
    """Continue a text with a trained language model, token by token."""

    run: AnyRun
    prompt: str = ""
    """text to continue (none: a new text)"""
    max_tokens: int = 100
    """most tokens to write; the model may end the text earlier"""
    loops: int | None = None
    """loops per token (None: the trained number)"""
    temperature: float = 0.8
    """0: always the likeliest token; 1: the model's own probabilities"""
    top_p: float = 0.95
    """sample from the likeliest tokens that together have this probability"""
    seed: int = 0
    """the same seed gives the same text"""
    exit: str | None = None
    """let each token stop at its own loop by a rule: stable:3, entropy:0.1, change:0.01, budget:12 or gate:0.9"""
    device: Device = "auto"
    """device to compute on"""
    json: bool = False
    """print one JSON object at the end"""


def generate(arguments: list[str]) -> None:
    """Write a text to standard output while it is generated, and its speed to standard error."""
    command = parse(GenerateCommand, arguments, "looped generate")

    from looped.inference import load
    from looped.inference.early_exit import ExitRule
    from looped.inference.generate import Sampling
    from looped.models.engines import choose_device

    rule = None if command.exit is None else ExitRule.parse(command.exit)
    sampling = Sampling(command.temperature, command.top_p, command.seed)
    run = load(command.run, choose_device(command.device))
    states = run.grow_texts([command.prompt], command.max_tokens, command.loops, sampling, rule)
    started = time.perf_counter()
    prompt = command.prompt
    for (text,) in states:  # the first one says whether the model takes the loops and the rule
        if not command.json:
            print(prompt + text.take(), end="", flush=True)
            prompt = ""
    seconds = time.perf_counter() - started
    num_tokens = len(text.loops)
    about = {
        "run": run.name, "prompt": text.prompt, "text": text.text, "tokens": text.tokens, "finished": text.finished,
        "mean_loops": text.mean_loops, "seconds": seconds,
    }  # fmt: skip
    show(about, text.take(is_last=True), as_json=command.json)
    if not command.json:
        speed = f"{plural(num_tokens, 'token')}, {text.mean_loops:.1f} loops each, {num_tokens / seconds:.0f} tokens/s"
        print(f"{run.name}: {speed}", file=sys.stderr)
