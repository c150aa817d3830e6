"""Compile the Gluon kernels for a Hopper GPU where there is none; print what each of them takes, as JSON lines.

Run as a script, for Triton asks once a process whether to interpret its kernels.
"""

import json
import sys
from types import SimpleNamespace

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

BFLOAT16, FLOAT32 = torch.bfloat16, torch.float32
TOKENS, LOOPS, FF = 1024, 2, 1024


class AbsentHopper:
    """A driver that answers the compiler's questions, for a GPU that is not there."""

    utils = SimpleNamespace(get_device_properties=lambda _device: {"max_shared_mem": 232448})
    launcher_cls = None

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device=None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def map_python_to_cpp_type(self, name: str) -> str:
        return name


def all_loops(**options):
    from looped.kernels.gluon_common import box_of
    from looped.kernels.gluon_loops import _all_loops

    x, inject, angles = empty(TOKENS, 256, dtype=FLOAT32), empty(TOKENS, 256), empty(128, 64)
    w_qkv, w_out = box_of(empty(LOOPS, 768, 256), 64, 256), box_of(empty(LOOPS, 256, 256), 256, 64)
    w_in, w_back = box_of(empty(LOOPS, FF, 256), 64, 256), box_of(empty(LOOPS, 256, FF), 256, 64)
    qkv, norms = empty(LOOPS, TOKENS, 768), empty(2, LOOPS, TOKENS, 256)
    seq_len = 122 if options["SHORT"] else 128
    return _all_loops.warmup(
        x, x, inject, angles, empty(LOOPS, FF), empty(LOOPS, 256), w_qkv, w_out, w_in, w_back, 768, 256, FF, 256, FF,
        256, box_of(norms, 64, 256), box_of(qkv, 64, 64), qkv, empty(2, LOOPS, TOKENS, dtype=FLOAT32), LOOPS, 8,
        seq_len, 0, LOOPS, FF=FF, KIND="gelu", ROTARY=True, INJECT=True, **options, num_warps=4, maxnreg=168, grid=(8,),
    )  # fmt: skip


def activation_products(**options):
    from looped.kernels.gluon_activation import _activation_products
    from looped.kernels.gluon_common import box_of

    normed, hidden = box_of(empty(TOKENS, 256), 64, 128), empty(TOKENS, FF)
    w_in, w_back = box_of(empty(FF, 256), 128, 128), box_of(empty(256, FF), 128, 128)
    return _activation_products.warmup(
        normed, normed, w_in, w_back, empty(FF), hidden, hidden, empty(128, FF, dtype=FLOAT32), TOKENS, FF=FF,
        **options, num_warps=4, maxnreg=168, grid=(128,),
    )  # fmt: skip


def attend_backward(**options):
    from looped.kernels.gluon_attention import _attend_backward
    from looped.kernels.gluon_common import box_of

    qkv, mixed = box_of(empty(TOKENS, 768), 64, 64), box_of(empty(TOKENS, 256), 64, 64)
    return _attend_backward.warmup(
        qkv,
        mixed,
        qkv,
        mixed,
        empty(128, 64),
        empty(128, 64, dtype=FLOAT32),
        122,
        HEADS=4,
        **options,
        num_warps=4,
        maxnreg=168,
        grid=(8,),
    )


def empty(*shape: int, dtype: torch.dtype = BFLOAT16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


KERNELS = {
    "answers": lambda: all_loops(CAUSAL=False, SHORT=False, KEEP=False),
    "causal training": lambda: all_loops(CAUSAL=True, SHORT=True, KEEP=True),
    "activation": lambda: activation_products(KIND="gelu"),
    "attention": lambda: attend_backward(CAUSAL=True, ROTARY=True, ROTATED=False),
}

if __name__ == "__main__":
    driver.set_active(AbsentHopper())
    for name in sys.argv[1:] or KERNELS:
        compiled = KERNELS[name]()
        ptx = compiled.asm["ptx"]
        row = {
            "shared": compiled.metadata.shared,
            "warps": compiled.metadata.num_warps,
            "cubin": len(compiled.asm["cubin"]),
        }
        print(json.dumps({"name": name, **row, "products": ptx.count("wgmma.mma_async")}))
