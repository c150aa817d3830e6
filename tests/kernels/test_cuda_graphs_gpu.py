"""On a GPU: a capture is not ended by what Python throws away meanwhile, and one that fails disturbs nothing else."""

import gc
import weakref

import pytest
import torch

from looped.kernels.cuda_graphs import PLAIN_CALLS, Replayed

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def test_graphs_no_longer_used_are_not_destroyed_during_a_capture():
    kept: list[Replayed] = []
    tensors = (torch.ones(4, device="cuda"),)

    def rich_in_garbage(tensors):
        kept.clear()
        for _ in range(30 * gc.get_threshold()[0]):
            itself = []
            itself.append(itself)
        return (3 * tensors[0],)

    new = Replayed(rich_in_garbage)
    for _ in range(PLAIN_CALLS):
        new(tensors)
    old = Replayed(lambda tensors: (2 * tensors[0],))
    for _ in range(PLAIN_CALLS + 1):
        old(tensors)
    assert old.captured
    vars(old)["itself"] = old  # only a collection finds it
    kept.append(old)
    watched = weakref.ref(old)
    del old
    assert new(tensors)[0].tolist() == [3] * 4
    assert new.usable
    assert len(new.captured) == 1
    gc.collect()
    assert watched() is None


def test_failed_capture_leaves_stream_random_numbers_and_other_graphs_as_they_were():
    tensors, before = (torch.ones(4, device="cuda"),), torch.cuda.current_stream()
    other = Replayed(lambda tensors: (2 * tensors[0],))
    for _ in range(PLAIN_CALLS + 1):
        other(tensors)

    def wait_for_device(tensors):
        if torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()  # no capture allows it
        return (3 * tensors[0],)

    failing = Replayed(wait_for_device)
    for _ in range(PLAIN_CALLS + 2):
        assert failing(tensors)[0].tolist() == [3] * 4
    assert not failing.usable
    assert torch.cuda.current_stream() == before
    assert torch.rand(4, device="cuda").isfinite().all()
    assert other(tensors)[0].tolist() == [2] * 4
