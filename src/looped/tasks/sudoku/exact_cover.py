"""A plain Sudoku solver, independent of the fast one: exact cover with Knuth's Algorithm X on dictionaries of sets."""

from collections.abc import Iterator


def all_solutions(puzzle: str) -> Iterator[str]:
    """Yield every solution of a board of 16 or 81 digits, where 0 is an open cell.

    A placement (cell, digit) meets four constraints: the cell is filled, and its row, column and box have the digit.
    Each constraint must be met exactly once. The search branches on the constraint with the fewest placements left.
    """
    side = round(len(puzzle) ** 0.5)
    box = round(side**0.5)
    constraints: dict[tuple[int, int], list[tuple[str, int, int]]] = {}
    placements: dict[tuple[str, int, int], set[tuple[int, int]]] = {}
    for cell in range(side * side):
        row, column = divmod(cell, side)
        for digit in range(1, side + 1):
            where = ("row", row), ("column", column), ("box", row // box * box + column // box)
            constraints[cell, digit] = [("cell", cell, 0), *((kind, line, digit) for kind, line in where)]
            for constraint in constraints[cell, digit]:
                placements.setdefault(constraint, set()).add((cell, digit))

    def place(placement: tuple[int, int]) -> list[set[tuple[int, int]]]:
        """Remove the constraints that a placement meets and the placements in conflict with it. Return them."""
        removed = []
        for constraint in constraints[placement]:
            for conflict in placements[constraint]:
                for other in constraints[conflict]:
                    if other != constraint:
                        placements[other].discard(conflict)
            removed.append(placements.pop(constraint))
        return removed

    def undo(placement: tuple[int, int], removed: list[set[tuple[int, int]]]) -> None:
        for constraint in reversed(constraints[placement]):
            placements[constraint] = removed.pop()
            for conflict in placements[constraint]:
                for other in constraints[conflict]:
                    if other != constraint:
                        placements[other].add(conflict)

    board = [int(symbol) for symbol in puzzle]
    for cell, digit in enumerate(board):
        if digit:
            if ("cell", cell, 0) not in placements or (cell, digit) not in placements["cell", cell, 0]:
                return
            place((cell, digit))

    def fill() -> Iterator[str]:
        if not placements:
            yield "".join(map(str, board))
            return
        tightest = min(placements, key=lambda constraint: len(placements[constraint]))
        for cell, digit in list(placements[tightest]):
            board[cell] = digit
            removed = place((cell, digit))
            yield from fill()
            undo((cell, digit), removed)

    yield from fill()
