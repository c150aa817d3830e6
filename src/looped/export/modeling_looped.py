"""A looped causal language model for Hugging Face transformers, written by `looped export RUN --to hf`.

This file needs torch and transformers only. One stack of layers is applied `num_loops` times, and a function of the
loop index may scale its sublayers. The number of loops is an argument of `forward` and `generate`, and may exceed the
one of the config. The cache has one slot for each pair (loop, layer).
"""

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.modeling_outputs import CausalLMOutputWithPast

RMS_EPSILON = 1e-12
POSITION_SCALE = 2**0.5 * 0.02
ACTIVATIONS = {"gelu": F.gelu, "relu": F.relu, "silu": F.silu}
# What the loop index sets: (kind, sublayer), where sublayer 0 is attention and 1 is the feed-forward layer.
SCALES, GATES = (("scale", 0), ("scale", 1)), (("gate", 0), ("gate", 1))
PARTS = {"none": (), "timestep": SCALES + GATES, "scale": SCALES, "gate": GATES,
         "shift": (*SCALES, *GATES, ("shift", 0), ("shift", 1))}  # fmt: skip


class LoopedConfig(PreTrainedConfig):
    """The shape of a looped language model. `num_loops` is the number of loops in training."""

    model_type = "looped"

    def __init__(
        self,
        vocab_size=2048,
        hidden_size=256,
        intermediate_size=1024,
        num_attention_heads=4,
        num_layers=1,
        num_loops=1,
        max_position_embeddings=256,
        conditioning="none",
        extrapolation="extend",
        injection="none",
        positions="rotary",
        activation="gelu",
        tie_word_embeddings=True,
        **kwargs,
    ):
        self.vocab_size, self.hidden_size, self.intermediate_size = vocab_size, hidden_size, intermediate_size
        self.num_attention_heads, self.num_layers, self.num_loops = num_attention_heads, num_layers, num_loops
        self.max_position_embeddings, self.conditioning = max_position_embeddings, conditioning
        self.extrapolation, self.injection, self.positions = extrapolation, injection, positions
        self.activation = activation
        kwargs.pop("num_hidden_layers", None)
        super().__init__(tie_word_embeddings=tie_word_embeddings, **kwargs)

    @property
    def num_hidden_layers(self):
        """Return the number of cache slots, which is what transformers asks this number for."""
        return self.num_layers * self.num_loops


def rms_normalise(x):
    """Return x / RMS(x), computed at least in float32."""
    precise = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    return (precise * torch.rsqrt(precise.square().mean(dim=-1, keepdim=True) + RMS_EPSILON)).to(x.dtype)


def sinusoid(values, dim):
    """Return sines and cosines of values at geometric frequencies, alternating."""
    frequencies = 10000.0 ** (-torch.arange(0, dim, 2, dtype=values.dtype, device=values.device) / dim)
    angles = values[..., None] * frequencies
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


def rotate(x, cos, sin):
    """Rotate each pair (x_i, x_{i + half}) by the angle of its position."""
    left, right = x.chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, left * sin + right * cos), dim=-1)


class Layer(nn.Module):
    """One Transformer layer with RMS norms before attention and before the feed-forward layer."""

    def __init__(self, config):
        super().__init__()
        dim, ff_dim = config.hidden_size, config.intermediate_size
        self.num_heads, self.activation = config.num_attention_heads, ACTIVATIONS[config.activation]
        self.w_qkv, self.w_out = nn.Parameter(torch.empty(3 * dim, dim)), nn.Parameter(torch.empty(dim, dim))
        self.w_in, self.b_in = nn.Parameter(torch.empty(ff_dim, dim)), nn.Parameter(torch.empty(ff_dim))
        self.w_back, self.b_back = nn.Parameter(torch.empty(dim, ff_dim)), nn.Parameter(torch.empty(dim))
        if not any(kind == "scale" for kind, _ in PARTS[config.conditioning]):
            self.gain_attention = nn.Parameter(torch.empty(dim))
            self.gain_feed_forward = nn.Parameter(torch.empty(dim))

    def forward(self, x, modulation, rotation, mask, cache, slot):
        attention, feed_forward = modulation
        batch, seq, dim = x.shape
        hidden = self.normalised(x, attention, "gain_attention")
        qkv = F.linear(hidden, self.w_qkv).view(batch, seq, 3, self.num_heads, dim // self.num_heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        if rotation is not None:
            query, key = rotate(query, *rotation), rotate(key, *rotation)
        if cache is not None:
            key, value = cache.update(key, value, slot)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask(key.shape[-2]))
        x = x + gated(F.linear(mixed.transpose(1, 2).reshape(batch, seq, dim), self.w_out), attention)
        hidden = self.normalised(x, feed_forward, "gain_feed_forward")
        hidden = self.activation(F.linear(hidden, self.w_in, self.b_in))
        return x + gated(F.linear(hidden, self.w_back, self.b_back), feed_forward)

    def normalised(self, x, modulation, gain):
        x = rms_normalise(x) * (modulation["scale"] if "scale" in modulation else getattr(self, gain))
        return x + modulation["shift"] if "shift" in modulation else x


def gated(update, modulation):
    """Multiply a sublayer's output by its gate, if it has one."""
    return modulation["gate"] * update if "gate" in modulation else update


class TimestepEncoding(nn.Module):
    """Compute scales, gates and shifts from the time of a loop."""

    def __init__(self, config):
        super().__init__()
        dim, self.parts = config.hidden_size, PARTS[config.conditioning]
        width = len(self.parts) * dim
        self.w4, self.b4 = nn.Parameter(torch.empty(dim, dim)), nn.Parameter(torch.empty(dim))
        self.w3, self.b3 = nn.Parameter(torch.empty(dim, dim)), nn.Parameter(torch.empty(dim))
        self.w5 = nn.Parameter(torch.empty(config.num_layers, width, dim))
        self.b5 = nn.Parameter(torch.empty(config.num_layers, width))

    def forward(self, times):
        """Return for each loop and layer the modulation of attention and of the feed-forward layer."""
        encoding = sinusoid(times, self.w4.shape[1]).to(self.w4.dtype)
        encoding = F.silu(F.linear(F.silu(F.linear(encoding, self.w4, self.b4)), self.w3, self.b3))
        table = torch.einsum("td,lpd->tlp", encoding, self.w5) + self.b5
        return [[self.split(row) for row in loop] for loop in table]

    def split(self, row):
        modulation = {}, {}
        for (kind, sublayer), vector in zip(self.parts, row.chunk(len(self.parts)), strict=True):
            modulation[sublayer][kind] = vector
        return modulation


class LoopedForCausalLM(PreTrainedModel, GenerationMixin):
    """A stack of layers in a loop, with its embedding and its language modelling head."""

    config_class = LoopedConfig
    base_model_prefix = "model"
    _tied_weights_keys = {"lm_head.weight": "embed_tokens.weight"}  # noqa: RUF012 (transformers reads it)
    _no_split_modules = ["Layer"]  # noqa: RUF012
    _supports_sdpa = True

    def __init__(self, config):
        super().__init__(config)
        dim = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, dim)
        learned = config.positions == "learned"
        self.positions = nn.Parameter(torch.empty(config.max_position_embeddings, dim)) if learned else None
        self.w_inject = nn.Parameter(torch.empty(dim, 2 * dim)) if config.injection == "concat" else None
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_layers))
        self.conditioner = None if config.conditioning == "none" else TimestepEncoding(config)
        self.gain = nn.Parameter(torch.empty(dim))
        self.lm_head = nn.Linear(dim, config.vocab_size, bias=False)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module):
        """Initialise a module as `looped` does. In particular, scales start at 1 and gates at 0."""
        config = self.config
        parameters = dict(module.named_parameters(recurse=False))
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=(0.02 * 768**0.5) * module.weight.shape[1] ** -0.5)
        elif isinstance(module, Layer):
            ungated = (2 * config.num_layers * config.num_loops) ** -0.5
            is_gated = any(kind == "gate" for kind, _ in PARTS[config.conditioning])
            for name, parameter in parameters.items():
                if name.startswith("gain"):
                    nn.init.ones_(parameter)
                elif name.startswith("b_"):
                    nn.init.zeros_(parameter)
                else:
                    scale = ungated if name in ("w_out", "w_back") and not is_gated else 1.0
                    nn.init.normal_(parameter, std=scale * (0.02 * 768**0.5) * parameter.shape[1] ** -0.5)
        elif isinstance(module, TimestepEncoding):
            for name, parameter in parameters.items():
                if name in ("w3", "w4"):
                    nn.init.normal_(parameter, std=(0.02 * 768**0.5) * parameter.shape[1] ** -0.5)
                else:
                    nn.init.zeros_(parameter)
            if not getattr(module.b5, "_is_hf_initialized", False):
                for place, (kind, _) in enumerate(module.parts):
                    module.b5[:, place * config.hidden_size : (place + 1) * config.hidden_size] = float(kind == "scale")
        elif isinstance(module, LoopedForCausalLM):
            nn.init.ones_(module.gain)
            if module.positions is not None:
                nn.init.normal_(module.positions, std=0.02)
            if module.w_inject is not None and not getattr(module.w_inject, "_is_hf_initialized", False):
                module.w_inject.copy_(torch.eye(config.hidden_size).repeat(1, 2))

    def get_input_embeddings(self):
        return self.embed_tokens

    def set_input_embeddings(self, value):
        self.embed_tokens = value

    def get_output_embeddings(self):
        return self.lm_head

    def set_output_embeddings(self, value):
        self.lm_head = value

    def generate(self, *args, **kwargs):
        """Generate as usual. `num_loops` may be given; without a cache of the caller's, one grows slot by slot."""
        kind, num_loops = kwargs.get("cache_implementation"), kwargs.get("num_loops")
        if kind is not None and num_loops is not None and num_loops > self.config.num_loops:
            expected = f"at most {self.config.num_loops} with cache_implementation={kind!r}, which has no more slots"
            raise ValueError(f"num_loops: expected {expected}, got {num_loops}")
        if kwargs.get("past_key_values") is None and kind is None:
            kwargs["past_key_values"] = DynamicCache()  # made from a config, it would have no slots for more loops
        return super().generate(*args, **kwargs)

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        past_key_values=None,
        inputs_embeds=None,
        labels=None,
        use_cache=None,
        output_hidden_states=None,
        logits_to_keep=0,
        num_loops=None,
        **kwargs,
    ):
        """Return the scores after `num_loops` loops (default: the config's), and every loop's state if asked."""
        config = self.config
        wanted, num_loops = num_loops, config.num_loops if num_loops is None else int(num_loops)
        if num_loops < 1 or wanted not in (None, num_loops):
            raise ValueError(f"num_loops: expected an integer of at least 1, got {wanted}")
        embeddings = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
        seen = 0 if past_key_values is None else past_key_values.get_seq_length()
        places = seen + torch.arange(embeddings.shape[1], device=embeddings.device)
        if position_ids is None:
            position_ids = places[None]
            if attention_mask is not None and attention_mask.ndim == 2:
                counted = attention_mask.long().cumsum(-1)[:, -embeddings.shape[1] :] - 1
                position_ids = counted.clamp(min=0)
        embeddings = self.with_positions(embeddings, position_ids)
        mask = self.mask_for(attention_mask, places)
        rotation = self.rotation(position_ids) if config.positions == "rotary" else None
        modulation = self.modulation(num_loops, embeddings.device)
        state = embeddings if config.injection == "none" else torch.zeros_like(embeddings)
        states = []
        for t in range(num_loops):
            if config.injection == "add":
                state = state + embeddings
            elif self.w_inject is not None:
                state = F.linear(torch.cat((state, embeddings), dim=-1), self.w_inject)
            for number, layer in enumerate(self.layers):
                slot = t * config.num_layers + number
                state = layer(state, modulation[t][number], rotation, mask, past_key_values, slot)
            states.append(state)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(rms_normalise(state[:, kept]) * self.gain)
        loss = None if labels is None else self.loss_function(logits, labels, config.vocab_size, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=past_key_values,
            hidden_states=tuple(states) if output_hidden_states else None,
        )

    def with_positions(self, embeddings, position_ids):
        if self.config.positions == "learned":
            return embeddings + F.embedding(position_ids, self.positions)
        if self.config.positions == "sinusoidal":
            angles = sinusoid(position_ids.float(), self.config.hidden_size)
            return embeddings + POSITION_SCALE * angles.to(embeddings.dtype)
        return embeddings

    def rotation(self, position_ids):
        half = self.config.hidden_size // self.config.num_attention_heads // 2
        frequencies = 10000.0 ** (-torch.arange(half, dtype=torch.float32, device=position_ids.device) / half)
        angles = position_ids.float()[:, None, :, None] * frequencies
        dtype = self.embed_tokens.weight.dtype
        return angles.cos().to(dtype), angles.sin().to(dtype)

    def modulation(self, num_loops, device):
        config = self.config
        if self.conditioner is None:
            return [[({}, {})] * config.num_layers] * num_loops
        times = torch.arange(num_loops, dtype=torch.float32, device=device)
        if num_loops > config.num_loops and config.extrapolation == "clamp":
            times = times.clamp(max=config.num_loops - 1)
        elif num_loops > config.num_loops and config.extrapolation == "rescale":
            times = times * (config.num_loops / num_loops)
        return self.conditioner(times)

    def mask_for(self, attention_mask, places):
        """Return a function from the number of keys to a mask: True where a query may attend to a key."""
        if attention_mask is not None and attention_mask.ndim == 4:  # as transformers prepares it for some caches
            return lambda num_keys: attention_mask[..., :num_keys]

        def mask(num_keys):
            keys = torch.arange(num_keys, device=places.device)
            visible = (keys <= places[:, None])[None, None]
            if attention_mask is not None:
                shown = F.pad(attention_mask.bool(), (0, num_keys - attention_mask.shape[1]), value=True)
                # A padded query attends to itself, because softmax over nothing is NaN.
                visible = visible & shown[:, None, None, :] | (keys == places[:, None])
            return visible

        return mask


LoopedConfig.register_for_auto_class()
LoopedForCausalLM.register_for_auto_class("AutoModelForCausalLM")
