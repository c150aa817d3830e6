"""A model for any task that Hugging Face's hub can save and load. Needs the extra `hub`."""

from typing import Any

import torch

from looped.config import ModelConfig
from looped.models import LoopModel
from looped.serde import decode
from looped.tasks import decode_task
from looped.utils.errors import InputError

try:
    from huggingface_hub import PyTorchModelHubMixin  # pyright: ignore[reportMissingImports]
except ImportError:
    raise InputError(
        "huggingface_hub: expected the extra hub, found none. Install it: pip install 'looped[hub]'"
    ) from None


_CARD: dict[str, Any] = {"library_name": "looped", "tags": ["looped-transformer"], "license": "apache-2.0"}


class LoopedModel(LoopModel, PyTorchModelHubMixin, **_CARD):
    """A `LoopModel` with `from_pretrained`, `save_pretrained` and `push_to_hub`.

    `model` and `task` are settings as JSON values, as in the `config.json` that `looped export` writes.
    """

    def __init__(self, model: dict[str, Any], task: dict[str, Any]) -> None:
        super().__init__(decode(ModelConfig, model), decode_task(task).spec, torch.Generator().manual_seed(0))
