"""`looped models`, and `looped models check|pack`."""

from dataclasses import dataclass
from typing import Any

import tyro

from looped.cli.args import aligned, leading_name, parse, show
from looped.utils.errors import InputError
from looped.utils.types import Device

_VERBS = ("list", "check", "pack")


@dataclass(frozen=True)
class ListCommand:
    """The trained models that come with looped, with what they scored in their tests."""

    json: bool = False
    """print one JSON object"""


@dataclass(frozen=True)
class CheckCommand:
    """Measure the shipped models afresh, on test examples that the recorded tests did not have."""

    seconds: float = 120.0
    """time for all of them together; it decides how many examples there are"""
    json: bool = False
    """print one JSON object"""


@dataclass(frozen=True)
class PackCommand:
    """Make a run's newest weights a shipped model: rounded to bfloat16, tested, written as one file."""

    run: tyro.conf.Positional[str]
    """folder of a trained run"""
    name: tyro.conf.Positional[str]
    """what it is to be called, such as sudoku/modulated-r32"""
    size: int | None = None
    """examples of the test (None: as in the run's record, or else the task's own number)"""
    commit: str | None = None
    """of the code that trained it (None: what the run's record says)"""
    date: str | None = None
    """of the training's end (None: what the run's record says)"""
    device: Device = "auto"
    """where to test"""
    json: bool = False
    """print one JSON object"""


def models(arguments: list[str]) -> None:
    asked = {*_VERBS, "-h", "--help"} & {*arguments}
    if not arguments or (arguments[0].startswith("-") and not asked):
        arguments = ["list", *arguments]
    verb, rest = leading_name(arguments, "verb", _VERBS, "looped models [VERB] --help")
    {"list": _list, "check": _check, "pack": _pack}[verb](rest)


def _list(arguments: list[str]) -> None:
    command = parse(ListCommand, arguments, "looped models list")

    from looped.models.pretrained import list_models, model_card

    found, damaged = [], []
    for name in list_models():
        try:
            found.append(model_card(name).to_json())
        except InputError as error:
            damaged.append(str(error))
    if found or not damaged:
        show({"models": found}, _table(found) if found else _none(), as_json=command.json)
    if damaged:
        raise InputError("; ".join(damaged))


def _check(arguments: list[str]) -> None:
    command = parse(CheckCommand, arguments, "looped models check")

    from looped.inference import shipping

    rows = shipping.evaluate_shipped(command.seconds)
    lines = [_compared(row) for row in rows]
    show({"models": rows}, "\n".join(lines) if rows else _none(), as_json=command.json)
    strange = [row["name"] for row in rows if not row["consistent"]]
    if strange:
        raise InputError(f"measured otherwise than recorded, by more than chance: {', '.join(strange)}")


def _pack(arguments: list[str]) -> None:
    command = parse(PackCommand, arguments, "looped models pack")

    from looped.inference import shipping
    from looped.models.engines import choose_device

    made = shipping.pack(
        command.run, command.name, commit=command.commit, date=command.date, size=command.size,
        device=choose_device(command.device),
    )  # fmt: skip
    about = made.to_json()
    show({"path": str(made.path), **about}, f"{made.path}\n{_table([about])}", as_json=command.json)


def _none() -> str:
    from looped.models.pretrained import weights_folder

    return f"no models in {weights_folder()}"


def _table(found: list[dict[str, Any]]) -> str:
    """Names, sizes and test results in columns."""
    rows = [("model", "parameters", "loops", "MB", "test", "95 % interval", "examples")]
    for each in found:
        test = each["test"]
        rows.append((
            each["name"], f"{each['parameters']:,}", str(each["loops"]), f"{each['bytes'] / 1e6:.2f}",
            f"{test['metric']} {test['value']:.4f}", f"{test['low']:.4f} to {test['high']:.4f}", f"{test['size']:,}",
        ))  # fmt: skip
    return "\n".join(aligned(rows, "<" * len(rows[0])))


def _compared(row: dict[str, Any]) -> str:
    measured, recorded = row["measured"], row["recorded"]
    verdict = "as recorded" if row["consistent"] else "NOT as recorded"
    return (
        f"{row['name']}: {measured['metric']} {measured['value']:.4f} "
        f"({measured['low']:.4f} to {measured['high']:.4f}) on {measured['size']:,} fresh examples, "
        f"{verdict}: {recorded['value']:.4f} on {recorded['size']:,}"
    )
