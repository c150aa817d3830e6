"""Checkpoints: folders of safetensors shards with a `state.json` of their hashes. Nothing is ever unpickled.

A checkpoint is written under a temporary name, flushed and renamed, so a folder `step-*` is whole or absent. The last
two are kept, and one whose hashes do not match is passed over, which is said, for the one before.
"""

import hashlib
import shutil
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load as load_shard
from safetensors.torch import save as save_shard
from torch import Tensor

from looped.utils.errors import InputError
from looped.utils.files import from_json, make_folder, save, save_json, sync_folder

MAX_SHARD_BYTES = 15_000_000
KEEP = 2


class Checkpoint(NamedTuple):
    step: int
    tensors: dict[str, Tensor]
    extra: dict[str, Any]


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Write `folder/step-*`; then drop all but the last `KEEP`."""
    make_folder(folder)
    for left_over in folder.glob(".step-*"):
        shutil.rmtree(left_over)
    final = folder / f"step-{checkpoint.step:09d}"
    if final.exists():
        try:
            load_checkpoint(final)
            return final
        except InputError:  # damaged: its place is needed
            shutil.rmtree(final)
    temporary = folder / f".{final.name}"
    try:
        temporary.mkdir()
        _write(temporary, checkpoint)
        temporary.rename(final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # what a full disk did not take in full
    sync_folder(folder)
    for old in sorted(folder.glob("step-*"))[:-KEEP]:
        shutil.rmtree(old)
    return final


def _write(folder: Path, checkpoint: Checkpoint) -> None:
    hashes = {}
    for number, shard in enumerate(_shards(checkpoint.tensors)):
        data = save_shard(shard)
        name = f"shard-{number:03d}.safetensors"
        save(folder / name, lambda handle, data=data: handle.write(data))
        hashes[name] = hashlib.sha256(data).hexdigest()
    shapes = {name: list(tensor.shape) for name, tensor in checkpoint.tensors.items()}
    state = {"step": checkpoint.step, "extra": checkpoint.extra, "shapes": shapes, "sha256": hashes}
    save_json(folder / "state.json", state)


def load_newest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint that is whole, or None where there is none at all."""
    found = sorted(folder.glob("step-*"), reverse=True)
    problems = []
    for path in found:
        try:
            checkpoint = load_checkpoint(path)
        except InputError as error:
            problems.append(str(error))
            continue
        if problems:
            print(f"looped: {problems[0]}; step {checkpoint.step} is used instead", file=sys.stderr)
        return checkpoint
    if problems:
        raise InputError(f"no checkpoint in {folder} can be read: {problems[0]}")
    return None


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint folder and check every shard's hash."""
    pieces: dict[str, Tensor] = {}
    try:
        state = from_json((path / "state.json").read_text())
        for name, expected in state["sha256"].items():
            data = (path / name).read_bytes()
            came = hashlib.sha256(data).hexdigest()
            if came != expected:
                raise InputError(f"{path / name} is damaged: expected sha256 {expected[:12]}..., got {came[:12]}...")
            pieces.update(load_shard(data))
        tensors = {name: _assemble(name, shape, pieces) for name, shape in state["shapes"].items()}
        return Checkpoint(int(state["step"]), tensors, dict(state["extra"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is not a checkpoint: {type(error).__name__}: {error}") from None


def _shards(tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """Flat pieces `name@number`, none and no shard larger than MAX_SHARD_BYTES."""
    shards: list[dict[str, Tensor]] = [{}]
    room = MAX_SHARD_BYTES
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous().flatten()
        for number, piece in enumerate(flat.split(max(1, MAX_SHARD_BYTES // flat.element_size()))):
            size = piece.numel() * piece.element_size()
            if size > room and shards[-1]:
                shards.append({})
                room = MAX_SHARD_BYTES
            shards[-1][f"{name}@{number}"] = piece.clone()
            room -= size
    return shards


def _assemble(name: str, shape: list[int], pieces: dict[str, Tensor]) -> Tensor:
    parts = []
    while (piece := pieces.get(f"{name}@{len(parts)}")) is not None:
        parts.append(piece)
    flat = torch.cat(parts)
    try:
        return flat.view(shape)
    except RuntimeError as error:  # not around all that is read: too little memory is one too, and damages nothing
        raise ValueError(f"{name}: {error}") from None
