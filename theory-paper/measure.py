"""Measure the tables of the paper and write them to tables/*.tex. Takes about ten minutes on one core."""

import warnings
from fractions import Fraction
from itertools import product
from pathlib import Path
from random import Random

import numpy as np
import torch

import looped
from looped import theory
from looped.models.from_theory import round_to
from looped.theory.bounds import cells_for_loops
from looped.theory.engine.engine import Engine
from looped.theory.lemmas.streams import sqrt_memorizer
from looped.utils.errors import InputError

TABLES = Path(__file__).parent / "tables"


def write(name: str, columns: str, header: str, rows: list[str], caption: str) -> None:
    """Write one table as LaTeX."""
    body = " \\\\\n".join(rows)
    text = (
        "\\begin{table}[t]\n\\centering\\footnotesize\n"
        f"\\begin{{tabular}}{{@{{}}{columns}@{{}}}}\n\\toprule\n{header} \\\\\n"
        f"\\midrule\n{body} \\\\\n\\bottomrule\n\\end{{tabular}}\n\\caption{{{caption}}}\n\\label{{tab:{name}}}\n"
        "\\end{table}\n"
    )
    TABLES.mkdir(exist_ok=True)
    (TABLES / f"{name}.tex").write_text(text)
    print(text, flush=True)


def slope(cells: list[int], errors: list[float]) -> float:
    """Return the exponent a of the least-squares fit error ~ n^a."""
    return float(np.polyfit(np.log(cells), np.log(errors), 1)[0])


def two_digits(number: float) -> str:
    """Return a number with two digits, powers of ten written out."""
    digits, _, power = f"{number:.2g}".partition("e")
    return f"${digits}\\cdot10^{{{int(power)}}}$" if power else digits


def equal() -> None:
    """Measure how the L^2 error falls with n for N = 3, with and without served equal tokens."""
    cells, target = [6, 8, 12, 16, 24], theory.load("wave", 1, 3)
    rows = []
    for variant, largest in (("modulated-minimal", 24), ("modulated-sqrt", 24), ("modulated-sqrt-multiset", 16)):
        tried = [n for n in cells if n <= largest]
        bounds = [theory.approximate(target, 1, 3, n, variant, "centre").bound(2) for n in tried]
        for name, errors in (
            ("$L^2$", [bound.measured_lp for bound in bounds]),
            ("sup on $\\good$", [bound.measured_sup for bound in bounds]),
        ):
            values = [f"{error:.3f}" for error in errors] + ["--"] * (len(cells) - len(tried))
            rows.append(f"\\variant{{{variant}}} & {name} & {' & '.join(values)} & ${slope(tried, errors):.2f}$")
    write(
        "equal",
        "ll" + "r" * (len(cells) + 1),
        "variant & error & " + " & ".join(f"$n={n}$" for n in cells) + " & slope",
        rows,
        "Equal tokens at work: wave, $d=1$, $N=3$, $p=2$, centres, $q=8$, measured on up to $1024$ cells. Without "
        "equal tokens all fall like $1/n$; over the whole cube only those that count them do, and "
        "\\variant{modulated-sqrt} falls like $n^{-d/p}=n^{-1/2}$ (Theorem~\\ref{thm:equal}).",
    )


def budget(most: int = 440, bits: int = 6) -> None:
    """Measure the L^2 error of every construction with the finest grid that fits into a number of loops."""
    variants = ("paper", "lean", "lean-stream", "modulated", "modulated-minimal", "modulated-sqrt")
    rows = []
    for name in ("attn", "max", "wave"):
        found = []
        for variant in variants:
            n = cells_for_loops(variant, most, 1, 2, bits)
            bound = theory.approximate(theory.load(name, 1, 2), 1, 2, n, variant, "centre", bits=bits).bound(2)
            found.append(f"{bound.measured_lp:.3f} ({n})")
        rows.append(f"{name} & " + " & ".join(found))
    write(
        "budget",
        "l" + "l" * len(variants),
        " & ".join(["$f$", *(f"\\variant{{{variant}}}" for variant in variants)]),
        rows,
        f"Measured $L^2$ error with at most {most} loops, $d=1$, $N=2$, centres, $q={bits}$; in brackets the finest "
        "grid that fits.",
    )


def bits(count: int = 1024, label_bits: int = 4) -> None:
    """Exchange loops against bits with the group size of the square-root memorizer."""
    rng = Random(0)
    labels = [Fraction(rng.randrange(2**label_bits), 2**label_bits) for _ in range(count)]
    sizes, longest, loops = (1, 2, 4, 8, 16, 32), [], []
    for group in sizes:
        network = sqrt_memorizer(labels, label_bits, group=group)
        values = Engine(network)(np.array(range(count), dtype=object).reshape(-1, 1, 1))
        assert [value[0, 0] for value in values] == labels
        longest.append(network.size.max_bits)
        loops.append(network.size.loops)
    write(
        "bits",
        "l" + "r" * len(sizes),
        "group size $K_2$ & " + " & ".join(map(str, sizes)),
        [
            "longest number, bits & " + " & ".join(map(str, longest)),
            "loops & " + " & ".join(map(str, loops)),
        ],
        f"Loops against bits: the square-root memorizer with $K={count}$ labels of $q={label_bits}$ bits; every label "
        "is returned exactly. Beyond $b\\approx\\sqrt{qK}=64$ longer numbers cost loops again.",
    )


def float64() -> None:
    """Run every construction in float64 as a model and compare it with the exact network."""
    rows = []
    for variant in theory.VARIANTS:
        net = theory.approximate(lambda x: x * x, 1, 2, 4, variant)
        cells = list(product(range(4), repeat=2))
        middle = torch.tensor([[[(k + 0.5) / 4] for k in cell] for cell in cells], dtype=torch.float64)
        exact = torch.tensor([[[float(v) for v in y] for y in net.code_value(cell)] for cell in cells])
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                error = two_digits(float((looped.from_theory(net)(middle) - exact).abs().max()))
        except InputError:
            error = "refused"
        rows.append(f"\\variant{{{variant}}} & {net.size.loops} & {net.size.max_bits} & {error}")
    write(
        "float",
        "lrrr",
        "variant & loops & longest number, bits & largest error",
        rows,
        "In float64: $f(x)=x^2$, $d=1$, $N=2$, $n=4$, $q=8$, against the exact network in the middle of all $16$ "
        "cells. \\texttt{modulated} multiplies ratios over its loops and rounds in its last digits.",
    )


def digits() -> None:
    """Run modulated-digits and, for comparison, modulated-minimal on all cells in short floating-point formats."""
    rows = []
    for shape in ((1, 2, 16), (1, 3, 4), (2, 2, 4), (1, 3, 8), (1, 4, 4), (1, 2, 32)):
        net = theory.approximate(theory.load("wave", shape[0], shape[1]), *shape, "modulated-digits")
        wrong = []
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            outputs, labels = _run(net, dtype)
            wrong.append(int((outputs != round_to(labels, dtype)).flatten(1).any(dim=1).sum()))
        short = Fraction(1, 4 * shape[2])
        minimal = theory.approximate(net.target, *shape, "modulated-minimal", epsilon=short)
        runs = [_run(minimal, dtype) for dtype in (torch.bfloat16, torch.float32)]
        errors = [two_digits(np.abs(outputs.double().numpy() - labels).max()) for outputs, labels in runs]
        size = (*shape, net.size.dims, net.size.loops, net.grid.num_sequences)
        rows.append(" & ".join([*(f"{number:,}".replace(",", "\\,") for number in (*size, *wrong)), *errors]))
    write(
        "digits",
        "r" * 11,
        "& & & & & & \\multicolumn{3}{c}{wrong cells, \\variant{modulated-digits}} & "
        "\\multicolumn{2}{c}{error, \\variant{modulated-minimal}} \\\\\n\\cmidrule(lr){7-9}\\cmidrule(l){10-11}\n"
        "$d$ & $N$ & $n$ & rows & loops & cells & bfloat16 & float16 & float32 & bfloat16 & float32",
        rows,
        "\\variant{modulated-digits} as a model: the number of cells in whose centre it differs from $f(\\hat X)$ "
        "rounded to the format. For comparison, the largest error of \\variant{modulated-minimal} with "
        "$\\varepsilon=\\delta/4$, whose sums of label differences are rounded in every loop. $f=\\mathrm{wave}$, "
        "corners stored.",
    )


def _run(net: theory.Approximation, dtype: torch.dtype) -> tuple[torch.Tensor, np.ndarray]:
    """Return the outputs of a model in the middle of all cells, and the labels."""
    n, cells = net.grid.cells, list(product(range(net.grid.base), repeat=net.grid.tokens))
    middle = torch.tensor([[[(k + 0.5) / n for k in net.grid.coordinates(z)] for z in cell] for cell in cells])
    labels = np.array([[[float(v) for v in y] for y in net.code_value(cell)] for cell in cells])
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        model = looped.from_theory(net, dtype)
        return torch.cat([model(part) for part in middle.split(256)]), labels


if __name__ == "__main__":
    float64()
    digits()
    bits()
    budget()
    equal()
