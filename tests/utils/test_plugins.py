"""Code from outside the package is imported only where a user names it, and its mistakes are one line."""

import os
import subprocess

import pytest

from looped.tasks import TASKS, decode_task, make_task, task_class
from looped.utils import plugins
from looped.utils.errors import InputError
from tests.refusal import refused

TASK = """
from dataclasses import dataclass
from typing import ClassVar
from looped.tasks import Spec, Task

@dataclass(frozen=True)
class Echo(Task):
    name: ClassVar[str] = "echo-{stem}"
    length: int = 3
    @property
    def spec(self):
        return Spec("tokens", 4, 4, self.length)
    def sample(self, seed, split, indices, size=None):
        return self.draw_batch(seed, split, indices, lambda rng: [rng.integers(4, size=self.length)] * 2)
    def score(self, prediction, batch):
        return {{"accuracy": (prediction == batch.targets)[:, -1].astype(float)}}
"""


def write(folder, stem, text=TASK):
    path = folder / f"{stem}.py"
    path.write_text(text.format(stem=stem.replace("_", "-")) if text is TASK else text)
    return path


def test_add_plugin_file_makes_its_task_known(tmp_path):
    assert "echo-one" not in TASKS
    plugins.add_plugin(str(write(tmp_path, "one")))
    assert "echo-one" in TASKS
    assert "echo-one" in list(TASKS)
    assert make_task("echo-one", length=5).spec.seq_len == 5
    assert decode_task({"name": "echo-one", "length": 2}).length == 2


def test_add_plugin_module_name_finds_the_file_here(tmp_path, monkeypatch):
    write(tmp_path, "here")
    monkeypatch.chdir(tmp_path)
    plugins.add_plugin("here")
    assert "echo-here" in TASKS
    assert os.environ[plugins.VARIABLE] == str(tmp_path / "here.py")


def test_variable_is_read_when_a_task_is_looked_up(tmp_path, monkeypatch):
    paths = [str(write(tmp_path, stem)) for stem in ("first", "second")]
    monkeypatch.setenv(plugins.VARIABLE, os.pathsep.join(paths))
    assert {"echo-first", "echo-second"} <= {*TASKS}


def test_decode_task_never_imports_what_it_names(tmp_path, monkeypatch):
    """A stored config names a task whose file and entry point both exist. Neither is imported."""
    write(tmp_path, "trap", "raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "trap-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: trap\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[looped.tasks]\ntrap = trap:Trap\n")
    for name in ("trap", "trap.py", "trap.py:Trap", "trap:Trap"):
        with refused("task", "--plugin"):
            decode_task({"name": name})
    with pytest.raises(SystemExit, match="imported"):  # asked for by name
        task_class("trap")


def test_task_class_loads_an_installed_entry_point(tmp_path, monkeypatch):
    write(tmp_path, "packaged")
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "packaged-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: packaged\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[looped.tasks]\necho-packaged = packaged:Echo\n")
    try:
        assert task_class("echo-packaged").__module__ == "packaged"
        assert decode_task({"name": "echo-packaged"}).length == 3
    finally:
        del TASKS["echo-packaged"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import nowhere_at_all", "ModuleNotFoundError"),
        ("x = 1\n1 / 0", "ZeroDivisionError: division by zero (line 2 of bad.py)"),
        ("def f(:", "SyntaxError"),
        (TASK.format(stem="x").replace("echo-x", "sudoku"), "which is taken"),
        (TASK.format(stem="x").replace("echo-x", "../x"), "lower-case words"),
    ],
)
def test_add_plugin_broken_file_is_one_line(text, expected, tmp_path):
    def use():
        plugins.add_plugin(str(write(tmp_path, "bad", text)))
        return list(TASKS)

    with pytest.raises(InputError) as caught:
        use()
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["missing.py", "no_such_module", "missing.py:Parity"])
def test_load_item_missing_file_or_module_raises(name):
    with refused(None, name.partition(":")[0]):
        plugins.load_item(name if ":" in name else f"{name}:Parity")


def test_load_item_unknown_class_suggests_the_closest(tmp_path):
    path = write(tmp_path, "close")
    assert plugins.load_item(f"{path}:Echo").name == "echo-close"
    with refused(path, "Echo"):
        plugins.load_item(f"{path}:Ecko")


def test_add_plugin_file_named_like_a_module_is_refused(tmp_path):
    with refused(None, "json.py"):
        plugins.add_plugin(str(write(tmp_path, "json")))


def test_register_makes_a_class_known_and_refuses_another_of_its_name():
    class Thing:
        pass

    assert plugins.register(Thing) is Thing
    assert plugins.find("model.layer", "Thing") is Thing
    with refused("Thing"):
        plugins.register(int, "Thing")
    with refused("model.layer", "Thing"):
        plugins.find("model.layer", "Think")


def test_source_hash_is_that_of_the_file(tmp_path):
    path = write(tmp_path, "hashed")
    item = plugins.load_item(f"{path}:Echo")
    expected = subprocess.run(["sha256sum", str(path)], capture_output=True, text=True, check=True).stdout.split()[0]
    assert plugins.source_hash(item) == expected
    assert plugins.source_hash(task_class("sudoku")) is None
