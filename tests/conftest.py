"""Without a GPU, Triton kernels run in its interpreter; Triton asks when it is first loaded, hence before any test."""

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
