"""Exported models in Hugging Face's libraries: equal to ours, with and without this package."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import looped
from looped.config import ModelConfig, RunConfig
from looped.export.card import model_card_text
from looped.export.huggingface import export_folder, tokenizer_json
from looped.inference import Run
from looped.models import build_model
from looped.tasks import EditDistance, Language, Sudoku, Task
from looped.tasks.language.tokenizer import TOKENIZERS, WIKI2K
from looped.training import train
from looped.utils.errors import InputError
from looped.utils.shipped import shipped_path
from tests.cli.command import answer, complaint
from tests.tasks.conftest import PROSE
from tests.training.conftest import tiny

transformers = pytest.importorskip("transformers", reason="needs the extra hub")

TASK = Language(text="synthetic:stories", vocabulary="wiki2k", seq_len=24)
MODELS = {
    "standard": {"block": "standard", "num_layers": 3, "positions": "learned"},
    "looped": {"block": "looped", "num_loops": 3, "injection": "add", "positions": "rotary"},
    "modulated": {"block": "modulated", "num_loops": 3, "num_layers": 2, "positions": "rotary"},
    "shifted": {"block": "modulated", "num_loops": 3, "conditioning": "shift", "positions": "sinusoidal"},
    "scaled": {"block": "modulated", "num_loops": 3, "conditioning": "scale", "extrapolation": "clamp"},
    "gated": {"block": "modulated", "num_loops": 3, "conditioning": "gate", "extrapolation": "rescale",
              "injection": "concat", "activation": "silu", "tie_embeddings": "no"},
}  # fmt: skip


def random_run(task: Task = TASK, **knobs) -> Run:
    """Return a run whose weights are all away from their initial values, and small enough for float32."""
    config = ModelConfig(**{"dim": 16, "num_heads": 2} | knobs)
    model = build_model(config, task.spec, seed=1)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return Run(RunConfig(task, config), model, 7, "runs/mine")


def load(folder: Path):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("hf")
    for name, knobs in MODELS.items():
        export_folder(random_run(**knobs), place / name)
    return {name: place / name for name in MODELS}


def tokens(batch: int = 2, seq_len: int = 12) -> torch.Tensor:
    return torch.randint(WIKI2K.size, (batch, seq_len), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_exported_scores_equal_ours_below_at_and_beyond_the_trained_loops(name, folders):
    model, ours = load(folders[name]), random_run(**MODELS[name]).model
    for num_loops in (1,) if name == "standard" else (1, 3, 7):
        scores = model(tokens(), num_loops=num_loops).logits
        torch.testing.assert_close(scores, ours(tokens(), num_loops), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_cached_scores_equal_uncached_ones(name, folders):
    model = load(folders[name])
    num_loops = None if name == "standard" else 5
    expected = model(tokens(), num_loops=num_loops).logits
    found, cache = [], None
    for piece in tokens().split([5, 1, 3, 1, 1, 1], dim=1):
        output = model(piece, past_key_values=cache, use_cache=True, num_loops=num_loops)
        cache = output.past_key_values
        found.append(output.logits)
    torch.testing.assert_close(torch.cat(found, dim=1), expected, rtol=0, atol=1e-5)
    assert len(cache.layers) == model.config.num_layers * (num_loops or 1)


@pytest.mark.parametrize("name", ["standard", "modulated"])
@torch.no_grad()
def test_padded_prompts_continue_as_they_do_alone(name, folders):
    model = load(folders[name])
    options = {"max_new_tokens": 6, "do_sample": False, "num_loops": None if name == "standard" else 5}
    short, long = tokens()[:1, :4], tokens()[1:]
    padded = torch.cat((torch.full((1, 8), WIKI2K.end_of_text), short), dim=1)
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[0, :8] = 0
    together = model.generate(torch.cat((padded, long)), attention_mask=mask, **options)[:, 12:]
    alone = [model.generate(each, attention_mask=torch.ones_like(each), **options) for each in (short, long)]
    assert together.tolist() == [alone[0][0, 4:].tolist(), alone[1][0, 12:].tolist()]


@pytest.mark.parametrize("num_loops", [0, -1, 2.5])
def test_wrong_number_of_loops_is_refused(num_loops, folders):
    with pytest.raises(ValueError, match=f"at least 1, got {num_loops}"):
        load(folders["looped"])(tokens(), num_loops=num_loops)


@torch.no_grad()
def test_static_cache_has_no_slots_beyond_the_loops_of_the_config(folders):
    model, options = load(folders["looped"]), {"max_new_tokens": 2, "do_sample": False}
    static = model.generate(tokens(), cache_implementation="static", num_loops=3, **options)
    assert static.tolist() == model.generate(tokens(), num_loops=3, **options).tolist()
    with pytest.raises(ValueError, match="num_loops: expected at most 3"):
        model.generate(tokens(), cache_implementation="static", num_loops=4, **options)


@torch.no_grad()
def test_generation_equals_ours(folders):
    ours = random_run(**MODELS["modulated"])
    (text,) = ours.generate("Ann has 3 apples", 8, 5, temperature=0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders["modulated"], trust_remote_code=True)
    prompt = tokenizer("Ann has 3 apples", return_tensors="pt").input_ids
    written = load(folders["modulated"]).generate(prompt, max_new_tokens=8, do_sample=False, num_loops=5)
    assert written[0, prompt.shape[1] :].tolist()[: len(text.tokens)] == text.tokens


@torch.no_grad()
def test_generate_with_beams_has_the_greedy_length_and_one_beam_is_greedy(folders):
    model = load(folders["looped"])
    prompt = tokens(1, 5)
    plain = model.generate(prompt, max_new_tokens=5, do_sample=False)
    beams = model.generate(prompt, max_new_tokens=5, do_sample=False, num_beams=3)
    assert beams.shape == plain.shape
    assert model.generate(prompt, max_new_tokens=5, do_sample=False, num_beams=1).tolist() == plain.tolist()


def test_loss_equals_the_mean_cross_entropy(folders):
    model = load(folders["looped"])
    output = model(tokens(), labels=tokens())
    expected = torch.nn.functional.cross_entropy(output.logits[:, :-1].flatten(0, 1), tokens()[:, 1:].flatten())
    torch.testing.assert_close(output.loss, expected)
    output.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_saved_again_it_loads_with_the_same_bits(name, folders, tmp_path):
    model = load(folders[name])
    model.save_pretrained(tmp_path / "again")
    again = load(tmp_path / "again")
    for key, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[key]), key
    tied = model.lm_head.weight is model.embed_tokens.weight
    assert tied == (name != "gated")
    assert (again.lm_head.weight is again.embed_tokens.weight) == tied


def test_new_model_starts_with_scales_of_1_and_gates_of_0():
    from looped.export.modeling_looped import LoopedConfig, LoopedForCausalLM

    config = LoopedConfig(hidden_size=16, num_attention_heads=2, conditioning="timestep", num_loops=4)
    model = LoopedForCausalLM(config)
    for (layer,) in model.modulation(9, torch.device("cpu")):
        for modulation in layer:
            assert torch.equal(modulation["scale"], torch.ones(16))
            assert torch.equal(modulation["gate"], torch.zeros(16))
    assert model.layers[0].w_qkv.std() > 0.01


def test_folder_loads_where_this_package_is_not_installed(folders):
    script = f"""
import sys
sys.modules["looped"] = None
from transformers import AutoModelForCausalLM, AutoTokenizer
folder = {str(folders["modulated"])!r}
model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
tokens = tokenizer("Ann has", return_tensors="pt").input_ids
print(model.generate(tokens, max_new_tokens=4, do_sample=False, num_loops=6).shape[1] - tokens.shape[1])
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() == "4"


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
def test_exported_tokenizer_encodes_and_decodes_as_ours(tokenizer):
    tokenizers = pytest.importorskip("tokenizers")
    theirs = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(tokenizer)))
    for text in (PROSE, "it's  two\n\n\t123 é日🦞!", "a<|endoftext|>b"):
        assert theirs.encode(text).ids == tokenizer.encode(text, marks=True).tolist()
        assert theirs.decode(theirs.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    ("knobs", "field"),
    [
        ({"block": "modulated", "num_loops": 3, "conditioning": "table"}, "model.conditioning"),
        ({"norm": "query-key"}, "model.norm"),
        ({"attention": "full"}, "model.attention"),
        ({"attention_weights": "hardmax"}, "model.attention_weights"),
        ({"start": "random", "injection": "add"}, "model.start"),
        ({"prelude_layers": 1}, "model.prelude_layers"),
        ({"coda_layers": 1}, "model.coda_layers"),
    ],
)
def test_model_that_the_code_does_not_know_is_refused(knobs, field, tmp_path):
    with pytest.raises(InputError) as caught:
        export_folder(random_run(**knobs), tmp_path / "out")
    assert caught.value.field == field
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("task", [Sudoku(side=4), EditDistance(length=4)], ids=lambda task: task.name)
@torch.no_grad()
def test_other_models_load_by_the_hub_mixin(task, tmp_path):
    from looped.export.hub import LoopedModel

    run = random_run(task, block="modulated", num_loops=3)
    export_folder(run, tmp_path / "first")
    model = LoopedModel.from_pretrained(tmp_path / "first")
    inputs = torch.from_numpy(task.sample(0, "test", range(3)).inputs)
    assert torch.equal(model(inputs, 5), run.model(inputs, 5))
    card = (tmp_path / "first" / "README.md").read_text()
    assert f"shape (batch, {inputs.shape[1]}) with integers" in card
    model.save_pretrained(tmp_path / "second")
    assert torch.equal(LoopedModel.from_pretrained(tmp_path / "second")(inputs, 5), run.model(inputs, 5))


def test_export_command_writes_a_folder_with_a_card(tmp_path, capsys):
    said = json.loads(answer(capsys, "export", "language", "--out", str(tmp_path / "hf"), "--json"))
    card = (tmp_path / "hf" / "README.md").read_text()
    assert said["run"] == "language/looped-r24"
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert "| parameters | 1,838,080 |" in card
    assert "| test perplexity | 21.0484" in card
    before = sorted(path.name for path in (tmp_path / "hf").iterdir())
    assert "exists" in complaint(capsys, "export", "language", "--out", str(tmp_path / "hf"))
    assert sorted(path.name for path in (tmp_path / "hf").iterdir()) == before


@pytest.mark.parametrize(("place", "run"), [("mine", "."), ("mine/checkpoints", ".."), (".", "./mine/")])
def test_exported_folder_is_named_after_the_run(place, run, tmp_path, capsys, monkeypatch):
    train(tiny(train={"num_steps": 1}), tmp_path / "mine", quiet=True)
    monkeypatch.chdir(tmp_path / place)
    answer(capsys, "export", run)
    assert "\n# mine\n" in (tmp_path / place / "mine-hf" / "README.md").read_text()


def test_card_of_a_model_file_has_its_test_score():
    shipped = looped.load("lcs/words-looped-r20")
    handed_on = looped.load(shipped_path("lcs/words-looped-r20"))
    (score,) = [line for line in model_card_text(shipped).splitlines() if line.startswith("| test accuracy |")]
    assert score in model_card_text(handed_on)


@pytest.mark.parametrize("task", [TASK, EditDistance(length=4)], ids=lambda task: task.name)
def test_card_names_loops_only_of_a_model_that_has_them(task):
    looped_card = model_card_text(random_run(task, **MODELS["looped"]))
    assert ", num_loops=3)" in looped_card
    assert "A looped Transformer applies" in looped_card
    assert "num_loops" not in model_card_text(random_run(task, **MODELS["standard"]))
