"""A cell of an experiment on a GPU: trained, tested and recorded there, in a process of its own."""

from dataclasses import replace

import pytest
import torch

from looped.experiments.records import load_records
from looped.experiments.runner import run_experiment
from looped.experiments.tables import experiment

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_runs_are_trained_and_tested_on_the_gpu(tmp_path):
    made = experiment("table1", "smoke").select(["ED40:standard", "ED40:modulated r=2"])
    cells = []
    for cell in made.cells:
        model = replace(cell.config.model, dim=64, precision="bfloat16")
        cells.append(
            replace(cell, config=replace(cell.config, model=model, train=cell.config.train.override(device="cuda")))
        )
    made = replace(made, cells=tuple(cells))
    assert run_experiment(made, tmp_path)
    records = load_records(None, tmp_path)
    assert len(records) == 2
    for record in records.values():
        assert record.hardware == torch.cuda.get_device_name()
