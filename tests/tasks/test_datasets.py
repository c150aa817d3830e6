import hashlib
import json
import resource

import numpy as np
import pytest

from looped.tasks import Countdown, DecisionTree, EditDistance, Language, datasets
from looped.utils.errors import InputError
from tests.refusal import refused

TASK = Countdown(count=3, max_input=20, max_target=40)


@pytest.fixture
def built(tmp_path):
    path = tmp_path / "set.jsonl"
    datasets.build(TASK, path, 40)
    return path


def change(path, line, **fields):
    lines = path.read_text().splitlines()
    lines[line - 1] = json.dumps(json.loads(lines[line - 1]) | fields)
    path.write_text("\n".join(lines) + "\n")


def test_sample_returns_readable_examples():
    pair = datasets.sample(EditDistance(length=6), size=3)[2]
    assert set(pair) == {"first", "second", "answer"}
    assert len(pair["first"]) == 6
    numbers = datasets.sample(Countdown(), size=1)[0]
    assert set(numbers) == {"numbers", "target", "solution"}
    tree = datasets.sample(DecisionTree(points=4, dims=2, depth=1), size=1)[0]
    assert [len(tree[name]) for name in ("x", "y", "coordinates", "leaves")] == [4, 4, 1, 2]
    json.dumps([pair, numbers, tree])
    assert datasets.sample(TASK, size=2) == datasets.sample(TASK, size=5)[:2]
    assert datasets.sample(TASK, size=2, seed=1) != datasets.sample(TASK, size=2)


def test_build_writes_the_samples_and_check_accepts_them(tmp_path):
    path, steps = tmp_path / "set.jsonl", []
    result = datasets.build(
        TASK, path, 1200, seed=3, split="test", progress=lambda done, total: steps.append((done, total))
    )
    header, *rows = map(json.loads, path.read_text().splitlines())
    assert header["task"]["name"] == "countdown"
    assert header["task"]["max_input"] == 20
    assert (header["seed"], header["split"], header["size"]) == (3, "test", 1200)
    assert rows == datasets.sample(TASK, size=1200, seed=3, split="test")
    assert result["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert steps[-1] == (1200, 1200)
    assert steps == sorted(steps)
    assert len(steps) > 1
    assert datasets.check(path) == {"path": str(path), "task": "countdown", "examples": 1200}
    trees = tmp_path / "trees.jsonl"
    datasets.build(DecisionTree(points=7, dims=3), trees, 30)
    assert datasets.check(trees)["examples"] == 30


@pytest.mark.parametrize(
    ("line", "fields", "values"),
    [
        (7, {"solution": "1 + 1 = 2, 2 + 2 = 5"}, ["line 7", "solution"]),
        (8, {"target": 41}, ["line 8", 41]),
        (5, {"solution": 7}, ["line 5", "solution", "int"]),
        (6, {"numbers": [1, 2, 3] * 9}, ["line 6"]),
        (9, {"numbers": 5}, ["line 9", "numbers", "int"]),
        (10, {"numbers": [3, "5", 7]}, ["line 10", "numbers"]),
        (1, {"task": {"name": "countdwn"}}, ["line 1", "countdwn", "'countdown'"]),
        (1, {"task": {"name": "countdown", "cuont": 3}}, ["line 1", "task.cuont", "task.count"]),
        (1, {"size": 41}, [41, 40]),
        (1, {"size": 39}, ["line 41", 39]),
        (1, {"size": "many"}, ["line 1", "size"]),
    ],
)
def test_check_wrong_line_raises_with_its_number(built, line, fields, values):
    change(built, line, **fields)
    with refused(built, *values):
        datasets.check(built)


@pytest.mark.parametrize(
    "fields",
    [
        {"first": "ZZ9", "second": "ZZ9", "answer": 0},
        {"first": "", "second": "", "answer": 0},
        {"first": "ab cd ef gh ", "second": "ab cd ef gh ", "answer": 0},
        {"first": " abcdef", "second": "abcdef", "answer": 2},
        {"first": "ab", "second": "ab", "answer": 0},
        {"first": "abcdef", "second": "abcdef", "answer": False},
        {"first": "abcdef", "second": "abcdef", "answer": 0.0},
    ],
)
def test_check_impossible_example_raises(tmp_path, fields):
    path = tmp_path / "pairs.jsonl"
    datasets.build(EditDistance(length=6), path, 3)
    change(path, 3, first="abcdef", second="abcdef", answer=0)
    assert datasets.check(path)["examples"] == 3
    change(path, 3, **fields)
    with refused(path, "line 3"):
        datasets.check(path)


@pytest.mark.parametrize("seed", [-1, 2**32, 2**64])
def test_invalid_seed_or_size_raises(tmp_path, seed):
    path = tmp_path / "set.jsonl"
    for use in (datasets.sample, datasets.stats, lambda task, size, seed: datasets.build(task, path, size, seed)):
        with pytest.raises(InputError) as caught:
            use(TASK, size=2, seed=seed)
        assert caught.value.field == "seed"
    assert not list(tmp_path.iterdir())
    for use in (datasets.sample, datasets.stats, lambda task, size: datasets.build(task, path, size)):
        with pytest.raises(InputError) as caught:
            use(TASK, size=2**63)
        assert caught.value.field == "size"


def test_check_other_file_raises(tmp_path, built):
    for content, values in (
        (b"", []),
        (b"\xff\xfe\n", ["line 1"]),
        (b"[1, 2]\n", ["line 1"]),
        (b"[" * 100_000 + b"\n", ["line 1"]),
        (built.read_bytes()[:-20], ["line 41"]),
    ):
        path = tmp_path / "wrong.jsonl"
        path.write_bytes(content)
        with refused(path, *values):
            datasets.check(path)
    with refused(tmp_path / "absent.jsonl"):
        datasets.check(tmp_path / "absent.jsonl")


def test_build_interrupted_keeps_the_old_file(tmp_path, built):
    before = built.read_bytes()

    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        datasets.build(TASK, built, 2000, seed=9, progress=interrupt)
    assert built.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [built.name]


def test_build_on_a_full_disk_keeps_the_old_file(tmp_path, built):
    before = built.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with refused(built):
            datasets.build(TASK, built, 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert built.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [built.name]


def test_build_to_an_invalid_path_raises(tmp_path):
    (tmp_path / "file").touch()
    with refused(tmp_path / "file" / "set.jsonl"):
        datasets.build(TASK, tmp_path / "file" / "set.jsonl", 10)
    with refused(tmp_path):
        datasets.build(TASK, tmp_path, 10)
    with pytest.raises(InputError) as caught:
        datasets.build(TASK, tmp_path / "set.jsonl", 0)
    assert caught.value.field == "size"


def test_stats_of_a_held_out_split_count_every_example_once(tmp_path, monkeypatch):
    monkeypatch.setenv("LOOPED_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "text.txt"
    path.write_text(" ".join(f"loop {number}" for number in range(900)))
    task = Language(text=str(path), seq_len=8)
    found = datasets.stats(task, size=1000, split="test")["examples"]
    windows = task.sample(0, "test", range(found + 1)).inputs
    assert 1 < found < 1000
    assert len(np.unique(windows[:found], axis=0)) == found
    assert (windows[found] == windows[0]).all()
    assert datasets.stats(task, size=1000, split="train")["examples"] == 1000


def test_stats_equal_counts_of_the_examples():
    task = EditDistance(length=8)
    found = datasets.stats(task, size=300)
    examples = datasets.sample(task, size=300)
    answers = [example["answer"] for example in examples]
    assert found["classes"] == {str(answer): answers.count(answer) for answer in sorted(set(answers))}
    assert found["baseline"]["accuracy"] == pytest.approx(max(found["classes"].values()) / 300)
    assert found["counted_positions"] == 1
    assert found["examples"] == 300
    countdown = datasets.stats(Countdown(), size=100)
    assert "classes" not in countdown
    assert set(countdown["operators"]) == set("+-*/")
    json.dumps([found, countdown])


def test_stats_sha256_differs_between_data_sets():
    first = datasets.stats(TASK, size=50, split="test")["sha256"]
    assert first == datasets.stats(TASK, size=50, split="test")["sha256"]
    assert len({first, *(datasets.stats(TASK, size=50, split="test", seed=seed)["sha256"] for seed in (1, 2))}) == 3


def test_check_of_an_endless_line_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("looped.utils.files.MAX_LINE", 1000)
    path = tmp_path / "line.jsonl"
    path.write_text("a" * 1000)
    with refused(path, "line 1", "1,000"):
        datasets.check(path)
