"""`looped models list|check|pack`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from looped.cli import COMPLETE
from looped.cli.args import aligned, leading_name, parse, require_writable, show
from looped.utils.errors import InputError
from looped.utils.types import Device


@dataclass(frozen=True)
class ListCommand:
    """List the shipped models with their test scores."""

    json: bool = False
    """print one JSON object"""


@dataclass(frozen=True)
class CheckCommand:
    """Evaluate the shipped models again, on test examples that their recorded tests did not use."""

    seconds: float = 120.0
    """time for all models together; it decides the number of examples"""
    json: bool = False
    """print one JSON object"""


@dataclass(frozen=True)
class PackCommand:
    """Write a run's newest weights as one model file: rounded to bfloat16, tested, with a card. Every command that
    takes a run also takes the file."""

    run: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    """folder of a trained run"""
    name: tyro.conf.Positional[str | None] = None
    """instead of --out: name of a model to ship with the package, such as sudoku/modulated-r32"""
    out: Path | None = None
    """file to write, such as model.safetensors"""
    size: int | None = None
    """number of test examples (None: as in the run's record, or the task's own number)"""
    commit: str | None = None
    """commit of the code that trained it (None: from the run's record or its training)"""
    date: str | None = None
    """date of the training (None: from the run's record or its newest checkpoint)"""
    device: Device = "auto"
    """device to test on"""
    json: bool = False
    """print one JSON object"""


def models(arguments: list[str]) -> None:
    """Run one of the verbs (default: list)."""
    verbs = {"list": ListCommand, "check": CheckCommand, "pack": PackCommand}
    asked = {*verbs, "-h", "--help", COMPLETE} & {*arguments}
    if not arguments or (arguments[0].startswith("-") and not asked):
        arguments = ["list", *arguments]
    verb, rest = leading_name(arguments, "verb", verbs, "looped models [VERB] --help")
    {"list": _list, "check": _check, "pack": _pack}[verb](rest)


def _list(arguments: list[str]) -> None:
    command = parse(ListCommand, arguments, "looped models list")

    from looped.models.pretrained import model_card
    from looped.utils.shipped import list_models

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
        raise InputError(f"these models differ from their records by more than chance: {', '.join(strange)}")


def _pack(arguments: list[str]) -> None:
    command = parse(PackCommand, arguments, "looped models pack")

    if (command.out is None) == (command.name is None):
        raise InputError(f"out: expected --out FILE, such as --out model.safetensors, got {_given(command)}")
    require_writable(command.out)

    from looped.inference import shipping
    from looped.models.engines import choose_device

    options: Any = {each: getattr(command, each) for each in ("commit", "date", "size")}
    options["device"] = choose_device(command.device)
    if command.out is None:
        made = shipping.ship(command.run, command.name or "", **options)
    else:
        made = replace(shipping.pack(command.run, command.out, **options), name=str(command.out))
    about = made.to_json()
    show({"path": str(made.path), **about}, f"{made.path}\n{_table([about])}", as_json=command.json)


def _given(command: PackCommand) -> str:
    return "neither a file nor a name" if command.out is None else f"the name {command.name!r} too"


def _none() -> str:
    from looped.utils.shipped import weights_folder

    return f"no models in {weights_folder()}"


def _table(found: list[dict[str, Any]]) -> str:
    """Return names, sizes and test scores as a table."""
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
