"""Write a trained run as a folder for Hugging Face.

transformers loads the folder of a language model without this package, because its code goes along. Other models are
loaded by `looped.export.hub.LoopedModel`. Nothing here needs transformers.
"""

import json
import os
import shutil
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from looped.config import ModelConfig
from looped.export.card import model_card_text
from looped.inference import Run
from looped.models import LoopModel
from looped.serde import encode
from looped.tasks import encode_task
from looped.tasks.language import Language
from looped.tasks.language.tokenizer import END_OF_TEXT_MARK, Tokenizer, ranks_of
from looped.utils.errors import InputError, require
from looped.utils.files import make_folder, writing

CODE = Path(__file__).with_name("modeling_looped.py")
CONDITIONINGS = ("none", "timestep", "scale", "gate", "shift")


def export_folder(run: Run, folder: Path) -> None:
    """Write a run as a Hugging Face folder, whole or not at all. Raise InputError if it cannot be exported."""
    with writing(folder):
        require(not os.path.lexists(folder), f"out: expected a new folder, got {folder}, which exists")
    if isinstance(run.task, Language):
        _require_exportable(run.model.config)
    make_folder(folder.parent)
    with writing(folder), tempfile.TemporaryDirectory(dir=folder.parent, prefix=".export-") as temporary:
        part = Path(temporary) / folder.name
        part.mkdir()
        if isinstance(run.task, Language):
            _write_language_model(run.model, run.task, part)
        else:
            _write_json(part / "config.json", {"model": encode(run.config.model), "task": encode_task(run.task)})
            _write_weights(part, dict(run.model.named_parameters()))
        (part / "README.md").write_text(model_card_text(run), encoding="utf-8")
        part.rename(folder)


def _write_language_model(model: LoopModel, task: Language, folder: Path) -> None:
    tokenizer = task.tokenizer
    _write_json(folder / "config.json", language_config(model, tokenizer))
    end = {"bos_token_id": tokenizer.end_of_text, "eos_token_id": tokenizer.end_of_text}
    unused = list(range(tokenizer.size, model.spec.output_size))  # rows that only pad the embedding
    generation = {**end, "pad_token_id": tokenizer.end_of_text, **({"suppress_tokens": unused} if unused else {})}
    _write_json(folder / "generation_config.json", generation)
    _write_json(folder / "tokenizer.json", tokenizer_json(tokenizer))
    marks = dict.fromkeys(("bos_token", "eos_token", "pad_token"), END_OF_TEXT_MARK)
    settings = {"model_max_length": task.seq_len, "padding_side": "left", "clean_up_tokenization_spaces": False}
    _write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **marks, **settings})
    _write_weights(folder, language_weights(model))
    shutil.copyfile(CODE, folder / CODE.name)


def _require_exportable(config: ModelConfig) -> None:
    """Raise InputError for a setting that `modeling_looped.py` does not know."""
    for name, value, known in (
        ("conditioning", config.resolved_conditioning, CONDITIONINGS),
        ("norm", config.norm, ("rms",)),
        ("attention_weights", config.attention_weights, ("softmax",)),
        ("positions", config.positions, ("none", "learned", "sinusoidal", "rotary")),
        ("attention", config.attention, ("task", "causal")),
        ("layer", config.layer, ("transformer",)),
        ("attention_bias", config.attention_bias, ("none",)),
        ("start", config.start, ("input",)),
        ("prelude_layers", config.prelude_layers, (0,)),
        ("coda_layers", config.coda_layers, (0,)),
        ("halting_gate", config.halting_gate, (False,)),
    ):
        if value not in known:
            expected = f"{' or '.join(map(str, known))} for an export to Hugging Face"
            raise InputError(f"model.{name}: expected {expected}, got {value!r}")


def language_config(model: LoopModel, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the `config.json` of a language model."""
    config = model.config
    home = CODE.stem
    return {
        "model_type": "looped",
        "architectures": ["LoopedForCausalLM"],
        "auto_map": {"AutoConfig": f"{home}.LoopedConfig", "AutoModelForCausalLM": f"{home}.LoopedForCausalLM"},
        "dtype": "float32",
        "bos_token_id": tokenizer.end_of_text,
        "eos_token_id": tokenizer.end_of_text,
        "vocab_size": model.spec.output_size,
        "max_position_embeddings": model.spec.seq_len,
        "hidden_size": config.dim,
        "intermediate_size": config.resolved_ff_dim,
        "num_attention_heads": config.num_heads,
        "num_layers": config.num_layers,
        "num_loops": config.num_loops,
        "conditioning": config.resolved_conditioning,
        "tie_word_embeddings": model.head is None,
        **{name: getattr(config, name) for name in ("extrapolation", "injection", "positions", "activation")},
    }


def language_weights(model: LoopModel) -> dict[str, Tensor]:
    """Return the weights of a language model under the names that `modeling_looped.py` gives them."""
    renamed = {"embedding": "embed_tokens.weight", "head": "lm_head.weight", "positions.0": "positions"}
    return {renamed.get(name, name.removeprefix("stack.")): value for name, value in model.named_parameters()}


def _write_weights(folder: Path, weights: dict[str, Tensor]) -> None:
    precise = {name: value.detach().to("cpu", torch.float32).contiguous() for name, value in weights.items()}
    (folder / "model.safetensors").write_bytes(tensors_to_bytes(precise, {"format": "pt"}))


def tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return an encoding as the `tokenizer.json` of Hugging Face's tokenizers."""
    ranks = ranks_of(tokenizer)
    vocabulary = {_printable(piece): rank for piece, rank in ranks.items()}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    mark = {"id": tokenizer.end_of_text, "content": END_OF_TEXT_MARK, "special": True}
    exact = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    merges = [[_printable(part) for part in _halves(piece, ranks)] for piece in ranks if len(piece) > 1]
    return {
        "version": "1.0",
        "added_tokens": [{**mark, **exact}],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges},
    }


def _halves(piece: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """Return the two parts that a piece is merged from: merge its bytes until only the piece's own merge is left."""
    parts = [bytes([byte]) for byte in piece]
    while len(parts) > 2:
        pairs = [ranks.get(left + right, len(ranks)) for left, right in pairwise(parts)]
        place = pairs.index(min(pairs))
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts


def _printable(piece: bytes) -> str:
    """Return bytes as GPT-2 writes them in a vocabulary: each byte is one printable character."""
    return "".join(_CHARACTERS[byte] for byte in piece)


def _byte_characters() -> list[str]:
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in shown else chr(next(others)) for byte in range(256)]


_CHARACTERS = _byte_characters()


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
