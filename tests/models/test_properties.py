"""Properties of every model for any weights: unrolling, symmetry, causality, truncation, precision, policies."""

from dataclasses import replace

import pytest
import torch

from looped import InputError, ModelConfig, Spec, build_model, evaluate
from looped.tasks import EditDistance
from tests.refusal import refused

from .cases import BLOCKS, CAUSAL, FREE_TABLES, SPECS, TOKENS, VECTORS, examples, label, scattered, small

each_block = pytest.mark.parametrize("knobs", BLOCKS, ids=label)


def close(got, expected):
    """Assert equality up to the order of additions in float64."""
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


def _unrolled(model, num_loops):
    """Return a standard model with a layer for every loop and layer. Scales become gains, and gates scale matrices."""
    config = model.config
    layers = num_loops * config.num_layers
    knobs = {name: getattr(config, name) for name in ("dim", "num_heads", "ff_dim", "positions", "precision")}
    standard = build_model(ModelConfig(block="standard", num_layers=layers, **knobs), model.spec)
    ours = dict(model.named_parameters())
    prepared = model.stack.prepare(num_loops, model.spec.seq_len, torch.device("cpu"))
    with torch.no_grad():
        for name, parameter in standard.named_parameters():
            if not name.startswith("stack."):
                parameter.copy_(ours[name])
        for t in range(num_loops):
            for i, source in enumerate(model.stack.layers):
                target = standard.stack.layers[t * config.num_layers + i]
                attention, feed_forward = prepared.modulation[t][i]
                gate_1 = 1.0 if attention.gate is None else attention.gate[:, None]
                gate_2 = 1.0 if feed_forward.gate is None else feed_forward.gate[:, None]
                target.w_qkv.copy_(source.w_qkv)
                target.w_out.copy_(gate_1 * source.w_out)
                target.w_in.copy_(source.w_in)
                target.b_in.copy_(source.b_in)
                target.w_back.copy_(gate_2 * source.w_back)
                target.b_back.copy_(source.b_back if feed_forward.gate is None else feed_forward.gate * source.b_back)
                target.gain_attention.copy_(attention.scale)
                target.gain_feed_forward.copy_(feed_forward.scale)
    return standard


UNROLLABLE = [each for each in BLOCKS if each.get("conditioning") not in ("additive", "shift")]


@pytest.mark.parametrize("knobs", UNROLLABLE, ids=label)
def test_loops_equal_an_unrolled_stack(knobs):
    model = scattered(small(**knobs), TOKENS)
    inputs = examples(TOKENS)
    for num_loops in range(1, model.config.num_loops + 1):
        close(model(inputs, num_loops), _unrolled(model, num_loops)(inputs))


@pytest.mark.parametrize("backprop_loops", [1, 2, 4, 9])
def test_tied_gradient_is_the_sum_over_the_last_copies(backprop_loops):
    """Compare with an unrolled stack. Truncation drops its first copies and the embedding."""
    model = scattered(small(block="looped", num_layers=2, num_loops=4), TOKENS)
    inputs = examples(TOKENS)
    standard = _unrolled(model, 4)
    weights = torch.randn(*inputs.shape, TOKENS.output_size, dtype=torch.float64, generator=torch.manual_seed(0))
    *_, last = model.iterate(inputs, 4, backprop_loops)
    (model.read_out(last) * weights).sum().backward()
    (standard(inputs) * weights).sum().backward()
    for i, layer in enumerate(model.stack.layers):
        copies = standard.stack.layers[i::2][-backprop_loops:]
        for name, parameter in layer.named_parameters():
            close(parameter.grad, torch.stack([copy.get_parameter(name).grad for copy in copies]).sum(dim=0))
    close(model.head.grad, standard.head.grad)
    if backprop_loops < 4:
        assert model.embedding.grad is None
    else:
        close(model.embedding.grad, standard.embedding.grad)


@pytest.mark.parametrize("injection", ["none", "add", "concat"])
@pytest.mark.parametrize("knobs", [each for each in BLOCKS if each["block"] != "standard"], ids=label)
def test_truncated_gradient_equals_that_of_a_detached_state(knobs, injection):
    model = scattered(small(**knobs, injection=injection), TOKENS)
    inputs = examples(TOKENS)
    num_loops, backprop_loops = 3, 2

    def gradients(state):
        model.zero_grad(set_to_none=True)
        model.read_out(state).square().sum().backward()
        return {name: parameter.grad for name, parameter in model.named_parameters()}

    *_, last = model.iterate(inputs, num_loops, backprop_loops)
    truncated = gradients(last)
    embeddings = model.embed(inputs)
    prepared = model.stack.prepare(num_loops, inputs.shape[1], inputs.device)
    state = list(model.iterate(inputs, num_loops))[num_loops - backprop_loops - 1].detach()
    for t in range(num_loops - backprop_loops, num_loops):
        state = model.stack.loop(state, embeddings, prepared, t)
    expected = gradients(state)
    whole = gradients(list(model.iterate(inputs, num_loops))[-1])
    for name, gradient in expected.items():
        if gradient is None:
            assert injection == "none", name
            assert truncated[name] is None, name
        else:
            close(truncated[name], gradient)
    # The truncated gradient differs from the full one.
    assert not torch.allclose(truncated["stack.layers.0.w_in"], whole["stack.layers.0.w_in"], rtol=1e-3)


def test_iterate_does_not_leak_its_gradient_mode():
    model = build_model(small(block="looped", num_loops=4), TOKENS)
    inputs = examples(TOKENS)
    for t, state in enumerate(model.iterate(inputs, 4, backprop_loops=2)):
        assert torch.is_grad_enabled()
        assert state.requires_grad == (t >= 2)
    with torch.no_grad():
        for state in model.iterate(inputs, 4, backprop_loops=2):
            assert not torch.is_grad_enabled()
            assert not state.requires_grad
    abandoned = model.iterate(inputs, 4, backprop_loops=1)
    next(abandoned)
    assert torch.is_grad_enabled()
    del abandoned
    assert torch.is_grad_enabled()


@each_block
@pytest.mark.parametrize("kind", SPECS)
def test_iterate_and_forward_give_the_same_answers(knobs, kind):
    spec = SPECS[kind]
    model = scattered(small(**knobs), spec)
    inputs = examples(spec)
    answers = [model.read_out(state) for state in model.iterate(inputs)]
    assert len(answers) == model.config.num_loops
    assert answers[0].shape == (2, spec.seq_len, spec.output_size)
    assert torch.equal(model(inputs), answers[-1])
    for read in [(1,), tuple(range(1, len(answers) + 1)), (len(answers), 1, 1)]:
        assert torch.equal(model(inputs, read=read), torch.stack([answers[loop - 1] for loop in read]))


@each_block
@pytest.mark.parametrize("injection", ["none", "add", "concat"])
def test_model_without_positions_and_mask_is_equivariant(knobs, injection):
    model = scattered(small(**knobs, injection=injection, positions="none", attention="full"), CAUSAL)
    inputs, order = torch.tensor([[0, 1, 2, 3, 4, 5]]), torch.tensor([3, 5, 0, 1, 4, 2])
    answers = model(inputs)
    close(model(inputs[:, order]), answers[:, order])
    assert (answers[:, order] - answers).abs().max() > 1e-2  # the positions do differ


@pytest.mark.parametrize(
    "knobs",
    [{"positions": each} for each in ("learned", "sinusoidal", "rotary", "coordinates")] + [{"attention": "causal"}],
)
def test_model_with_positions_or_mask_is_not_equivariant(knobs):
    model = scattered(small(**({"positions": "none"} | knobs)), TOKENS)
    inputs, order = torch.tensor([[0, 1, 2, 3, 4, 5]]), torch.tensor([3, 5, 0, 1, 4, 2])
    assert not torch.allclose(model(inputs[:, order]), model(inputs)[:, order], rtol=1e-6)


@each_block
@pytest.mark.parametrize("positions", ["none", "learned", "rotary"])
def test_causal_outputs_ignore_later_tokens(knobs, positions):
    model = scattered(small(**knobs, positions=positions), CAUSAL)
    full = scattered(small(**knobs, positions=positions, attention="full"), CAUSAL)
    inputs = examples(CAUSAL)
    for place in range(CAUSAL.seq_len):
        changed = inputs.clone()
        changed[:, place] = (changed[:, place] + 1) % CAUSAL.input_size
        moved = (model(changed) != model(inputs)).any(dim=-1)
        assert not moved[:, :place].any()
        assert moved[:, place:].all()
        assert (full(changed) != full(inputs)).any(dim=-1).all()
    # A shorter sequence has the same answers.
    close(model(inputs[:, :3]), model(inputs)[:, :3])


# Relative to the largest answer, at eight loops and width 64. Measured: 6e-7 and 1.2e-2.
TOLERANCE = {"float32": 5e-6, "bfloat16": 4e-2}


@pytest.mark.parametrize("knobs", [each | {"num_loops": 8} for each in BLOCKS[1:]] + [BLOCKS[0]], ids=label)
@pytest.mark.parametrize("precision", TOLERANCE)
def test_lower_precision_is_close_to_float64(knobs, precision):
    wide = knobs | {"dim": 64, "num_heads": 4, "ff_dim": 128}
    exact = build_model(small(**wide), CAUSAL)
    with torch.no_grad():
        for name, parameter in exact.named_parameters():
            if "conditioner" in name:
                parameter += 0.1 * torch.randn(parameter.shape, dtype=torch.float64, generator=torch.manual_seed(0))
    coarse = build_model(small(**wide, precision=precision), CAUSAL)
    coarse.load_state_dict(exact.state_dict())
    inputs = examples(CAUSAL)
    got, expected = coarse(inputs), exact(inputs)
    assert got.dtype == torch.float32
    error = ((got - expected).abs().max() / expected.abs().max()).item()
    assert error < TOLERANCE[precision]
    assert error > 0.0


def _modulations(model, num_loops):
    """Return (loop, layer, vectors) of the whole modulation."""
    rows = model.stack.prepare(num_loops, 1, torch.device("cpu")).modulation
    return torch.stack(
        [
            torch.stack([torch.cat([v for part in layer for v in part if v is not None]) for layer in row])
            for row in rows
        ]
    )


@pytest.mark.parametrize("conditioning", ["timestep", "static", "table", "eta", "scale", "gate", "shift"])
def test_extrapolation_policies_beyond_the_trained_loops(conditioning):
    knobs = {"block": "modulated", "conditioning": conditioning, "num_loops": 4, "num_layers": 2}
    clamp, rescale, extend = (
        scattered(small(**knobs, extrapolation=each), TOKENS) for each in ("clamp", "rescale", "extend")
    )
    trained = _modulations(extend, 4)
    for model in (clamp, rescale, extend):
        for num_loops in (1, 3, 4):  # the policies are equal within the trained range
            close(_modulations(model, num_loops), trained[:num_loops])
    close(_modulations(clamp, 7), trained[[0, 1, 2, 3, 3, 3, 3]])
    close(_modulations(rescale, 8)[::2], trained)
    if conditioning in FREE_TABLES:
        close(_modulations(rescale, 8)[1:-1:2], (trained[:-1] + trained[1:]) / 2)
        return
    longer = build_model(small(**(knobs | {"num_loops": 7})), TOKENS)  # the same weights, trained for more loops
    longer.load_state_dict(extend.state_dict())
    inputs = examples(TOKENS)
    close(extend(inputs, 7), longer(inputs))
    if conditioning != "static":
        assert not torch.allclose(extend(inputs, 7), clamp(inputs, 7), rtol=1e-6)
        assert not torch.allclose(extend(inputs, 7), rescale(inputs, 7), rtol=1e-6)


@pytest.mark.parametrize("conditioning", FREE_TABLES)
def test_free_table_beyond_its_loops_raises(conditioning):
    knobs = {"block": "modulated", "conditioning": conditioning, "num_loops": 2}
    inputs = examples(TOKENS)
    with pytest.raises(InputError) as caught:
        build_model(small(**knobs), TOKENS)(inputs, num_loops=3)
    assert caught.value.field == "model.extrapolation"
    assert build_model(small(**knobs, extrapolation="clamp"), TOKENS)(inputs, num_loops=3).isfinite().all()


def test_new_token_is_normalised_as_printed():
    model = build_model(small(block="looped", dim=64), TOKENS)
    state = model.embed(examples(TOKENS))
    printed = state / state.square().mean(dim=-1, keepdim=True).sqrt()
    model.head = torch.nn.Parameter(torch.eye(64, dtype=torch.float64))  # so that the read-out is only the norm
    torch.testing.assert_close(model.read_out(state), printed, rtol=1e-7, atol=0)


def test_all_zero_token_stays_finite():
    model = build_model(small(block="looped", num_loops=2, positions="none"), VECTORS)
    inputs = torch.zeros(1, 4, 3, dtype=torch.float64, requires_grad=True)
    answers = model(inputs)
    answers.sum().backward()
    assert answers.isfinite().all()
    assert inputs.grad is not None
    assert inputs.grad.isfinite().all()


NO_COORDINATES = Spec("tokens", input_size=7, output_size=5, seq_len=6)
SMALL_TASK = EditDistance(length=4)
FITTING, TOO_LONG = examples(TOKENS), examples(TOKENS, seq_len=7)


def _model(spec=TOKENS, **knobs):
    return build_model(small(**knobs), spec)


MISTAKES = {
    "no loops": (lambda: _model()(FITTING, num_loops=0), ["num_loops"]),
    "no loops to count": (lambda: _model().flops(num_loops=0), ["num_loops"]),
    "no loops to show": (lambda: _model().iterate(FITTING, -1), ["num_loops"]),
    "half a loop": (lambda: _model()(FITTING, 2.5), ["num_loops"]),
    "half a loop to show": (lambda: _model().iterate(FITTING, 2.5), ["num_loops"]),
    "half a loop back": (
        lambda: next(_model().iterate(FITTING, 2, 1.5)),
        ["backprop_loops"],
    ),
    "half a loop of a stack": (
        lambda: _model().stack(torch.zeros(2, 3, 8), 1.5),
        ["num_loops"],
    ),
    "a mask for loops": (
        lambda: _model().stack(torch.zeros(2, 3, 8), torch.ones(2, 3, dtype=torch.bool)),
        ["num_loops"],
    ),
    "half a loop to read": (lambda: _model(num_loops=2)(FITTING, read=(1.5,)), ["read", (1.5,)]),
    "half a loop to measure": (
        lambda: evaluate(_model(SMALL_TASK.spec), SMALL_TASK, "test", 5, [2.5]),
        ["loops"],
    ),
    "no examples": (lambda: _model()(FITTING[:0]), ["inputs", (0, 6)]),
    "no tokens": (lambda: _model()(FITTING[:, :0]), ["inputs", (2, 0)]),
    "no vectors": (lambda: _model(VECTORS)(examples(VECTORS)[:0]), ["inputs", (0, 6, 3)]),
    "loops of a standard model": (lambda: _model(block="standard")(FITTING, 2), ["num_loops"]),
    "read too late": (lambda: _model(num_loops=2)(FITTING, read=(1, 3)), ["read", (1, 3)]),
    "read too early": (lambda: _model(num_loops=2)(FITTING, read=(0,)), ["read", (0,)]),
    "read nothing": (lambda: _model()(FITTING, read=()), ["read", ()]),
    "too long": (lambda: _model()(TOO_LONG), ["inputs", 6, 7]),
    "too long for coordinates": (lambda: _model(positions="coordinates")(TOO_LONG), ["inputs", 6, 7]),
    "no coordinates": (lambda: _model(NO_COORDINATES, positions="coordinates"), ["model.positions"]),
    "heads": (lambda: small(dim=8, num_heads=3), ["num_heads"]),
    "odd width": (lambda: small(dim=9, num_heads=3), ["dim"]),
    "odd head": (lambda: small(dim=6, num_heads=2, positions="rotary"), ["positions"]),
    "no width": (lambda: small(dim=0), ["dim"]),
    "no layers": (lambda: small(num_layers=0), ["num_layers"]),
    "standard loops": (lambda: small(block="standard", num_loops=2), ["num_loops"]),
    "conditioning": (lambda: small(block="looped", conditioning="table"), ["conditioning"]),
    "block": (lambda: small(block="loop"), ["block", "looped"]),
    "activation": (lambda: small(activation="glu"), ["activation", "gelu"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_invalid_arguments_raise_in_one_line(mistake):
    make, named = MISTAKES[mistake]
    with refused(*named):
        make()


@pytest.mark.parametrize("positions", ["none", "sinusoidal", "rotary"])
def test_other_positions_accept_any_length(positions):
    assert _model(positions=positions)(examples(TOKENS, seq_len=20)).shape == (2, 20, 5)


@pytest.mark.parametrize(
    ("inputs", "value"),
    [
        (torch.zeros(2, 3, 4, dtype=torch.long), (2, 3, 4)),
        (torch.zeros(2, 3), torch.float32),
        (torch.full((2, 3), 10_000), 10_000),
        (torch.full((2, 3), -1), -1),
    ],
)
def test_invalid_tokens_raise(inputs, value):
    model = build_model(small(), TOKENS)
    with refused("inputs", value):
        model(inputs)


@pytest.mark.parametrize(("arguments", "field"), [((0, None), "num_loops"), ((2, 0), "backprop_loops")])
def test_stack_without_loops_raises(arguments, field):
    model = build_model(small(), TOKENS)
    with refused(field, 0):
        next(model.stack.iterate(model.embed(examples(TOKENS)), *arguments))


def test_tie_embeddings_follows_the_task_or_the_setting():
    """Compare tied embeddings from the model's setting with those from the task's shared vocabulary."""
    told, silent = SPECS["shared"], replace(SPECS["shared"], shared_vocabulary=False)
    tokens = examples(told)
    shared, by_task, apart = (
        build_model(small(tie_embeddings=tie_embeddings), spec)
        for tie_embeddings, spec in (("yes", silent), ("task", told), ("no", told))
    )
    assert torch.equal(shared(tokens), by_task(tokens))
    with torch.no_grad():
        shared.embedding[0] = 0.0  # the embedding of token 0 also computes its score
        apart.embedding[0] = 0.0
    assert (shared(tokens)[..., 0] == 0).all()
    assert not (apart(tokens)[..., 0] == 0).any()
    with pytest.raises(InputError) as caught:
        build_model(small(tie_embeddings="yes"), SPECS["tokens"])
    assert caught.value.field == "model.tie_embeddings"


def test_spec_with_contradictions_raises():
    with pytest.raises(InputError) as caught:
        Spec("tokens", 5, 6, 4, shared_vocabulary=True)
    assert caught.value.field == "shared_vocabulary"
    with pytest.raises(InputError) as caught:
        Spec("tokens", 5, 5, 4, coordinates=((0, 1, 2),))
    assert caught.value.field == "coordinates"
