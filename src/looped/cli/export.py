"""`looped export RUN`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from looped.cli.args import AnyRun, parse, require_writable, show
from looped.utils.errors import require


@dataclass(frozen=True)
class ExportCommand:
    """Write a trained run for use outside this package."""

    run: AnyRun
    to: Literal["hf", "onnx"] = "hf"
    """hf: a folder for Hugging Face; onnx: one file whose inputs are the examples and the number of loops"""
    out: Path | None = None
    """folder or file to write (None: the run's name in the current folder)"""
    json: bool = False
    """print one JSON object"""


def export(arguments: list[str]) -> None:
    """Export a run and print where it is."""
    command = parse(ExportCommand, arguments, "looped export")

    from looped.inference import load

    run = load(command.run)
    words = [word for word in run.name.removesuffix(".safetensors").split("/") if word.strip(".")]
    name = "-".join(words[-2:]) or Path(run.name).resolve().name
    if command.to == "hf":
        from looped.export.huggingface import export_folder

        out = command.out or Path(f"{name}-hf")
        export_folder(run, out)
        text = f"{out}: load it with transformers or looped.export.hub; README.md says how"
    else:
        from looped.export.onnx import export_file

        out = command.out or Path(f"{name}.onnx")
        require(out.suffix == ".onnx", f"out: expected a file that ends in .onnx, got {str(out)!r}")
        require_writable(out)
        found = export_file(run, out)
        text = f"{out}: in onnxruntime, scores differ from PyTorch's by at most {found.difference:.1e}"
    show({"path": str(out), "run": run.name, "to": command.to}, text, as_json=command.json)
