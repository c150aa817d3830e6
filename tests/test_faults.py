"""The fault harness itself: it has to find what is there to be found."""

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from faults import power
from faults.bitflips import flip_bits
from faults.hostile import hostile_runs
from faults.kills import distinct
from faults.mutations import mutated
from faults.operations import Fault, Operation, build_shim, read_control, read_trace, write_control
from faults.server import counted
from faults.table import Row, markdown, merged, summary
from faults.target import Target
from faults.tries import Journal, Result, Tries, carry_out
from tests.paths import ROOT

PROGRAM = """
import os
os.mkdir("new")
with open("new/file", "w") as file:
    file.write("written")
    file.flush()
    os.fsync(file.fileno())
os.rename("new/file", "new/final")
"""


def run_program(folder: Path, fault: Fault) -> tuple[int, list[Operation], bool]:
    """Run a small program under the shim and return its exit code, its operations and whether the fault was reached."""
    notes = folder.parent / "notes"
    notes.mkdir(exist_ok=True)
    (notes / "trace").unlink(missing_ok=True)
    write_control(notes / "control", folder, fault, notes / "trace")
    environment = os.environ | {"LD_PRELOAD": str(build_shim()), "FAULTS_CONTROL": str(notes / "control")}
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=folder, env=environment, stderr=subprocess.DEVNULL)
    return done.returncode, read_trace(notes / "trace"), read_control(notes / "control")[1]


def test_shim_records_every_operation_and_kills_at_the_chosen_one(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    code, operations, _ = run_program(folder, Fault())
    assert (code, [each.kind for each in operations]) == (0, ["mkdir", "open", "write", "sync", "rename"])
    assert operations[2].data == b"written"
    for number, kind in enumerate(["mkdir", "open", "write", "sync", "rename"]):
        empty = tmp_path / f"killed-{kind}"
        empty.mkdir()
        code, _, hit = run_program(empty, Fault(number, "kill before"))
        assert (code, hit) == (-9, True)
        assert (empty / "new").exists() == (number > 0)
        assert (empty / "new" / "file").exists() == (number > 1)


def test_shim_fails_an_operation_with_the_chosen_error(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    code, operations, hit = run_program(folder, Fault(3, "fail once", 5))
    assert (code, hit, operations[3].error) == (1, True, 5)


def test_power_cut_keeps_only_what_was_synced(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    _, operations, _ = run_program(folder, Fault())
    kept = {}
    for model in ("strict", "journal"):
        tree, left = power.Folder(), tmp_path / model
        left.mkdir()
        power.replay(tree, folder, operations)
        power.write_tree(tree, left, strict=model == "strict")
        kept[model] = {str(path.relative_to(left)): path.is_file() and path.read_text() for path in left.rglob("*")}
    assert kept == {"strict": {}, "journal": {"new": False, "new/final": "written"}}


def test_distinct_takes_one_operation_of_each_kind():
    def operation(number: int, kind: str, path: str) -> Operation:
        return Operation(number, kind, path, "", 0, 0, 0, 0, b"")

    paths = ["/x/.looped-0123456789abcdef.tmp", "/x/.looped-fedcba9876543210.tmp", "/x/step-5", "/x/step-10"]
    operations = [operation(number, "write", path) for number, path in enumerate(paths)]
    assert [each.number for each in distinct(operations)] == [0, 2]


def test_mutated_is_a_function_of_its_seed():
    data = b'{"step": 3, "list": [1, 2.5, null], "name": "x"}'
    first, again, other = (mutated(data, random.Random(seed), json_like=True) for seed in (1, 1, 2))
    assert first == again != other


def test_table_counts_failures_and_tells_how_to_repeat_them():
    row = Row("faults", "kill --only {}", left_out=7)
    row.add("one", None, Counter({"exit code 0": 1}), "abc")
    row.add("two words", "traceback: KeyError: 'x'", Counter({"exit code 1": 1}), "abc")
    text = markdown([row])
    assert "| faults | 2 | 7 | 1 | 1 exit code 0, 1 exit code 1 |" in text
    assert "`python -m faults kill --only 'two words'`" in text


def test_merged_rows_count_the_tries_of_all_parts():
    one, other, third = (Row(name, "kill --only {}", left_out=2) for name in ("a", "b", "a"))
    one.add("first", None, Counter({"exit code 0": 1}), "abc")
    third.add("second", "torn", Counter({"exit code 1": 1}), "def")
    whole, rest = merged([one, other, third])
    assert (whole.name, whole.tries, whole.left_out, whole.failures) == ("a", 2, 4, {"second": "torn"})
    assert whole.commits == {"abc": 1, "def": 1}
    assert (rest.name, rest.tries) == ("b", 0)
    assert (one.tries, one.failures) == (1, {})


def test_summary_adds_the_rows_of_a_family():
    rows = [Row(name, "kill --only {}", tries=3, left_out=1000) for name in ("a", "b")]
    rows[1].failures["x"] = "torn"
    assert rows[0].family == "kill"
    assert summary([("killed", rows), ("not tried", [])]).splitlines()[2:] == ["| killed | 6 | 2,000 | 1 |"]


def numbered(tried: list[str]) -> list[Tries]:
    """Return ten tries in two batches; those with a 7 fail."""

    def carry(cases: Sequence[str]) -> list[Result]:
        tried.extend(cases)
        return [Result("seven" if case == "7" else None) for case in cases]

    return [Tries("row", [str(number) for number in range(start, start + 5)], carry) for start in (0, 5)]


def test_carry_out_after_the_deadline_leaves_all_tries_out():
    tried: list[str] = []
    (row,) = carry_out("family", numbered(tried), Journal(None, "abc"), seed=0, deadline=0.0)
    assert (row.tries, row.left_out, tried) == (0, 10, [])


def test_carry_out_with_a_journal_tries_nothing_twice_but_failures_on_request(tmp_path):
    tried: list[str] = []
    carry_out("family", numbered(tried), Journal(tmp_path / "j.jsonl", "abc"), seed=0, only="3")
    assert tried == ["3"]
    (row,) = carry_out("family", numbered(tried), Journal(tmp_path / "j.jsonl", "def"), seed=0)
    assert sorted(tried) == [str(number) for number in range(10)]
    assert (row.tries, row.failures, row.commits) == (10, {"7": "seven"}, {"abc": 1, "def": 9})
    tried.clear()
    (row,) = carry_out("family", numbered(tried), Journal(tmp_path / "j.jsonl", "fed"), seed=0, retry=True)
    assert (tried, row.tries, row.failures) == (["7"], 10, {"7": "seven"})


def test_parts_of_a_family_together_try_everything_once(tmp_path):
    tried: list[str] = []
    rows = [
        row
        for first in (1, 2)
        for row in carry_out("family", numbered(tried), Journal(None, "abc"), seed=0, part=(first, 2))
    ]
    assert sorted(tried) == [str(number) for number in range(10)]
    assert merged(rows)[0].tries == 10


def test_journal_whose_last_line_was_cut_loses_only_that_try(tmp_path):
    path = tmp_path / "j.jsonl"
    carry_out("family", numbered([]), Journal(path, "abc"), seed=0)
    path.write_bytes(path.read_bytes()[:-20])
    tried: list[str] = []
    (row,) = carry_out("family", numbered(tried), Journal(path, "abc"), seed=0)
    assert (len(tried), row.tries) == (1, 10)
    assert len(Journal(path, "abc").results) == 10


COUNTS_CALLS = """
calls = []
def main(arguments):
    calls.append(arguments)
    print(calls)
"""


def test_target_that_has_run_before_is_warmed_up(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project.scripts]\nlooped = "program:main"\n')
    (tmp_path / "program.py").write_text(COUNTS_CALLS)
    with Target(tmp_path) as target:
        assert target.run(["cold"], tmp_path).stdout == "[['cold']]\n"
        target.warm([["first"], ["second"]])
        assert target.run(["try"], tmp_path).stdout == "[['first'], ['second'], ['try']]\n"


def test_killed_runner_is_killed_at_the_operation_that_its_worker_counted(tmp_path):
    write_control(tmp_path / "control", tmp_path, Fault())
    assert counted(str(tmp_path / "control")) == 0
    folder = tmp_path / "folder"
    folder.mkdir()
    run_program(folder, Fault())
    control = tmp_path / "notes" / "control"
    assert counted(str(control)) == read_control(control)[0] == 5


@pytest.mark.slow
@pytest.mark.parametrize("family", [flip_bits, hostile_runs], ids=lambda family: family.__name__)
def test_one_process_can_carry_out_both_halves_of_a_family(family):
    with Target(ROOT) as target:
        halves = [[tries.row for tries in family(target, full=False, seed=0)] for _ in range(2)]
    assert halves[0] == halves[1] != []
