"""Checkpoints changed by somebody who knows how they are sealed: the hashes fit again afterwards."""

import hashlib
import json
from pathlib import Path
from typing import Any


def reseal(checkpoint: Path, change: dict[str, bytes]) -> None:
    """Write other bytes into files of a checkpoint folder and make the hashes in its JSON file fit."""
    (state_path,) = checkpoint.glob("*.json")
    text = state_path.read_text()
    for name, data in change.items():
        before = hashlib.sha256((checkpoint / name).read_bytes()).hexdigest()
        (checkpoint / name).write_bytes(data)
        text = text.replace(before, hashlib.sha256(data).hexdigest())
    write_state(state_path, json.loads(text))


def rename_in_state(checkpoint: Path, name: str) -> None:
    """Let a checkpoint's state call its first tensor file by another name."""
    (state_path,) = checkpoint.glob("*.json")
    first = sorted(checkpoint.glob("*.safetensors"))[0].name
    write_state(state_path, _renamed(json.loads(state_path.read_text()), first, name))


def _renamed(value: Any, old: str, new: str) -> Any:
    if isinstance(value, dict):
        return {new if key == old else key: _renamed(each, old, new) for key, each in value.items()}
    if isinstance(value, list):
        return [_renamed(each, old, new) for each in value]
    return new if value == old else value


def write_state(path: Path, state: Any) -> None:
    """Write a checkpoint's state as the program would, with a hash of itself where it has one."""
    path.write_bytes(sealed(json.dumps(state).encode()))


def sealed(data: bytes) -> bytes:
    """Return JSON as the program lays it out, whose hash of itself, if it has one, is right."""
    try:
        state = json.loads(data)
        if not isinstance(state, dict) or not isinstance(state.get("sha256"), str):
            return data
        content = {name: value for name, value in state.items() if name != "sha256"}
        seal = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        return json.dumps({**content, "sha256": seal}, indent=1).encode() + b"\n"
    except (ValueError, RecursionError):
        return data
