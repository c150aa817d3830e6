"""`looped bench` as a user meets it, on the laptop's sizes and for an instant each."""

import json
from itertools import pairwise

import pytest
import torch

from looped import benchmark
from looped.cli.main import main
from looped.utils.errors import InputError
from tests.cli.command import answer, complaint
from tests.refusal import refused

LAPTOP = ("--preset", "laptop", "--device", "cpu")
EAGER = (*LAPTOP, "--engines", "eager")


@pytest.fixture(autouse=True)
def _an_instant(monkeypatch):
    monkeypatch.setattr(benchmark, "SECONDS", 1e-3)
    monkeypatch.setattr(benchmark, "WARM_UPS", 1)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # other tests ask for it, and it is slow
    torch.set_num_threads(1)


def test_bench_train_as_json_has_a_row_per_batch(capsys):
    assert main(["bench", "train", *EAGER, "--batches", "2", "4", "--json"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert result.keys() == {"machine", "date", "rows"}
    assert result["machine"]["torch"] == torch.__version__
    assert result["machine"]["hardware"].startswith("CPU")
    assert len(result["date"].split("-")) == 3
    assert [row["batch"] for row in result["rows"]] == [2, 4]
    for row in result["rows"]:
        assert (row["preset"], row["engine"], row["num_loops"]) == ("laptop", "eager", 8)
        assert row["ms"] > 0
        assert row["sequences_per_second"] == pytest.approx(1000 * row["batch"] / row["ms"], rel=0.01)
        assert row["gradient_error"] == 0  # against itself
        assert row["peak_gib"] is None
    assert "laptop" in captured.err  # rows are shown as they come


def test_bench_train_counts_three_forward_passes_per_step(capsys):
    """And the same sequences a second mean the same work a second, whatever the row."""
    train, infer = (
        json.loads(answer(capsys, "bench", verb, *EAGER, "--batches", "64", "--json"))["rows"][0]
        for verb in ("train", "infer")
    )
    chosen = benchmark.preset("laptop")
    flops = benchmark._opened(chosen.model, chosen.spec).flops()
    for row, passes in ((train, 3), (infer, 1)):
        assert row["tflops"] == pytest.approx(passes * 64 * flops / (row["ms"] / 1000) / 1e12, rel=2e-3)
    assert "gradient_error" not in infer


def test_bench_table_is_aligned_and_compares_with_plain_pytorch(capsys):
    machine, *lines = answer(
        capsys, "bench", "train", *LAPTOP, "--engines", "fused", "eager", "--batches", "2"
    ).splitlines()
    assert machine.startswith("hardware CPU")
    head, *rows = lines
    assert len(rows) == 2
    assert head.split()[:4] == ["preset", "engine", "loops", "batch"]
    assert {row.split()[1] for row in rows} <= {"eager", "fused"}
    assert all(len(line) == len(head) for line in rows)
    for heading in ("ms", "x eager", "sequences/s", "TFLOP/s", "of peak", "grad error"):
        end = head.index(heading) + len(heading)
        assert all(row[end - 1] != " " for row in rows), heading  # numbers end under their heading
    assert float(rows[-1][: head.index("x eager") + len("x eager")].split()[-1]) > 0


def test_bench_without_a_gpu_measures_the_laptop_model(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    asked = {}

    def record(name, **options):
        asked.update(options, name=name)
        return iter([])

    monkeypatch.setattr(benchmark, "bench_train", record)
    assert json.loads(answer(capsys, "bench", "train", "--json"))["rows"] == []
    assert asked == {"name": "laptop", "engines": ("eager", "compiled"), "batches": (), "device": "auto"}


def test_bench_scaling_doubles_one_size_at_a_time(capsys, tmp_path):
    path = tmp_path / "new" / "scaling.json"
    result = json.loads(answer(capsys, "bench", "scaling", *LAPTOP, "--json", "--out", str(path)))
    assert json.loads(path.read_text()) == result
    for varied, key in (("loops", "num_loops"), ("tokens", "seq_len"), ("batch", "batch")):
        rows = [row for row in result["rows"] if row["varied"] == varied]
        sizes = [row[key] for row in rows]
        assert all(later == 2 * earlier for earlier, later in pairwise(sizes))
        others = {"num_loops", "seq_len", "batch"} - {key}
        assert all(len({row[other] for row in rows}) == 1 for other in others)
        assert not any(row["remat"] for row in rows)
    again = [row for row in result["rows"] if row["varied"] == "remat"]
    assert [(row["num_loops"], row["remat"]) for row in again] == [(8, 1), (8, 10), (80, 10)]


def test_bench_scaling_of_one_size_varies_only_that(capsys):
    result = json.loads(answer(capsys, "bench", "scaling", *LAPTOP, "--varied", "tokens", "--json"))
    assert [(row["varied"], row["seq_len"]) for row in result["rows"]] == [("tokens", n) for n in (2, 4, 8, 16)]


def test_bench_with_out_writes_the_file_and_prints_the_table(capsys, tmp_path):
    path = tmp_path / "bench.json"
    out = answer(capsys, "bench", "infer", *EAGER, "--batches", "2", "--out", str(path))
    (row,) = json.loads(path.read_text())["rows"]
    assert f"{row['ms']:,.3f}" in out
    assert [each.name for each in tmp_path.iterdir()] == ["bench.json"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected a verb first"),
        (["trian"], "did you mean 'train'"),
        (["train", "--preset", "latpop"], "did you mean 'laptop'"),
        (["infer", *LAPTOP, "--batches", "0"], "batches: expected positive numbers, got 0"),
        (["train", *LAPTOP, "--engines", "jax"], "jax"),
        (["scaling", "--batches", "3"], "--batches"),
        (["scaling", "--varied", "width"], "width"),
        (["infer", *EAGER, "--batches", "2", "--json", "--out", "{file}/nested.json"], "cannot write"),
    ],
)
def test_bench_with_wrong_input_prints_one_line(arguments, message, capsys, tmp_path):
    (tmp_path / "file").write_text("mine")
    code = main(["bench", *(each.format(file=tmp_path / "file") for each in arguments)])
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert message in captured.err.strip().split("\n")[-1]
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("verb", ["train", "infer", "scaling"])
def test_bench_with_an_unwritable_file_fails_before_measuring(verb, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, f"bench_{verb}", lambda *_, **__: pytest.fail("it was measured"))
    (tmp_path / "file").write_text("mine")
    out = tmp_path / "file" / "new" / "bench.json"
    expected = f"cannot write {out}: {tmp_path / 'file'} is a file, expected a folder"
    assert expected in complaint(capsys, "bench", verb, *LAPTOP, "--out", str(out))
    assert "Is a directory" in complaint(capsys, "bench", verb, *LAPTOP, "--out", str(tmp_path))
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_bench_on_a_missing_gpu_names_it(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "needs a GPU" in complaint(capsys, "bench", "infer", "--device", "cuda")


def test_bench_shapes_measures_every_shape_with_every_engine():
    shapes = [benchmark.Shape(4, 64, 2), benchmark.Shape(6, 128, 1)]
    rows = list(benchmark.bench_shapes(shapes, ["eager"], num_loops=2, seconds=1e-3, device="cpu"))
    assert [(row["seq_len"], row["dim"], row["batch"], row["engine"]) for row in rows] == [
        (4, 64, 2, "eager"),
        (6, 128, 1, "eager"),
    ]
    assert all(row["ms"] > 0 for row in rows)


def test_bench_shapes_without_enough_memory_has_no_time(monkeypatch):
    def fail(*_args, **_options):
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr(benchmark.Stepper, "gradients", fail)
    (row,) = benchmark.bench_shapes([benchmark.Shape(4, 64, 2)], ["eager"], num_loops=1, seconds=1e-3, device="cpu")
    assert row["ms"] is None


def test_bench_shapes_with_a_mistake_ends_with_it(monkeypatch):
    def refuse(*_args, **_options):
        raise InputError("dim: expected another one, got 64")

    monkeypatch.setattr(benchmark.Stepper, "gradients", refuse)
    with refused("dim", 64):
        list(benchmark.bench_shapes([benchmark.Shape(4, 64, 2)], ["eager"], num_loops=1, seconds=1e-3, device="cpu"))


def test_bench_train_in_another_precision_says_so(capsys):
    (row,) = json.loads(answer(capsys, "bench", "train", *EAGER, "--precision", "bfloat16", "--json"))["rows"]
    assert row["precision"] == "bfloat16"
    assert row["gradient_error"] > 1e-4  # float32 has none
