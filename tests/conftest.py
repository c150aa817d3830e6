"""What must be set before any test: where machine code is kept, and how Triton's kernels run without a GPU."""

import os

import torch

from looped.files import cache_folder

# Tests have cache folders of their own, but need not compile every generator once more for each.
os.environ.setdefault("NUMBA_CACHE_DIR", str(cache_folder() / "numba"))

# In an interpreter; Triton asks when it is first loaded.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
