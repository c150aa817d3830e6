"""The networks of the proofs as data for the page, which runs them in exact arithmetic.

A network is a list of affine forms over named rows (`looped.theory`). Networks of one construction share most of their
forms, so that each form is stored once and named by its number; the whole is compressed.
"""

import base64
import gzip
import json
from fractions import Fraction
from typing import Any

from looped import theory
from looped.theory.constructions.approximate import BUILDERS, Plan
from looped.theory.constructions.paper import FAULTS
from looped.theory.grid import Grid
from looped.theory.network import Form, LoopedNetwork

FUNCTIONS = {
    "mean": "the mean of all tokens",
    "prod": "the product of all tokens",
    "max": "the largest token, less half the own one",
    "attn": "softmax attention over all tokens",
    "wave": "a sine of the own token and of the sum of all",
}
GRIDS = ((2, 2), (2, 3), (2, 4), (2, 6), (2, 8), (3, 2), (3, 3))
"""tokens and cells; all tokens are numbers"""
MOST_LOOPS = 460
BITS = 4
"""digits of a label in the stream variants"""


def theory_data() -> str:
    """Return all networks as base64 of compressed JSON."""
    forms = _Forms()
    networks = {}
    for tokens, cells in GRIDS:
        for variant in BUILDERS:
            if Plan(variant, Grid(1, tokens, cells), BITS).loops > MOST_LOOPS:
                continue
            for function in FUNCTIONS:
                key = f"{function}/{tokens}/{cells}/{variant}"
                networks[key] = _network(function, tokens, cells, variant, (), forms)
                if variant == "paper" and tokens == 2:
                    for fault in FAULTS:
                        networks[f"{key}/{fault}"] = _network(function, tokens, cells, variant, (fault,), forms)
    data = {"forms": forms.texts, "networks": networks, "functions": FUNCTIONS, "faults": FAULTS}
    packed = gzip.compress(json.dumps(data, separators=(",", ":")).encode(), 9, mtime=0)
    return base64.b64encode(packed).decode()


class _Forms:
    """Forms as text, each stored once."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._places: dict[str, int] = {}

    def __call__(self, form: Form | int | Fraction) -> int:
        """Return the number of a form: its constant, then pairs of a name and its coefficient."""
        form = Form.of(form)
        text = " ".join([str(form.const), *(f"{name} {factor}" for name, factor in form.terms.items())])
        if text not in self._places:
            self._places[text] = len(self.texts)
            self.texts.append(text)
        return self._places[text]


def _network(
    function: str, tokens: int, cells: int, variant: Any, printed: tuple[str, ...], forms: _Forms
) -> dict[str, Any]:
    target = theory.load(function, 1, tokens)
    net = theory.approximate(target, 1, tokens, cells, variant, representative="centre", bits=BITS, printed=printed)
    return {"epsilon": str(net.epsilon), **network_data(net.network, forms)}


def network_data(network: LoopedNetwork, forms: _Forms) -> dict[str, Any]:
    """Return a network as numbers of forms."""
    layer = network.feed_forward
    return {
        "loops": network.loops,
        "inputs": list(network.inputs),
        "encode": {name: forms(form) for name, form in network.encode.items()},
        "units": [forms(unit) for unit in layer.units],
        "updates": {name: forms(form) for name, form in layer.updates.items() if form.terms or form.const},
        "heads": [[forms(head.value), forms(head.key), forms(head.query), head.into] for head in network.heads],
        "decode": [forms(form) for form in network.decode],
        "modulation": {name: [forms(number) for number in row] for name, row in network.modulation.items()},
    }
