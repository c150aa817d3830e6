"""Without a GPU, Triton kernels run in its interpreter; Triton asks when a kernel is defined, hence before any test."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
