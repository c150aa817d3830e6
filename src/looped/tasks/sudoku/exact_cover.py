"""A plain Sudoku solver, independent of the fast one: exact cover by Knuth's Algorithm X on dictionaries of sets."""

from collections.abc import Iterator


def all_solutions(puzzle: str) -> Iterator[str]:
    """Every solution of a board of 16 or 81 digits, 0 for an open cell, one after the other.

    A placement (cell, digit) meets four demands: the cell is filled, and its row, its column and its box have the
    digit. Each demand must be met once. The demand with the fewest placements left is met next.
    """
    side = round(len(puzzle) ** 0.5)
    box = round(side**0.5)
    demands: dict[tuple[int, int], list[tuple[str, int, int]]] = {}
    placements: dict[tuple[str, int, int], set[tuple[int, int]]] = {}
    for cell in range(side * side):
        row, column = divmod(cell, side)
        for digit in range(1, side + 1):
            where = ("row", row), ("column", column), ("box", row // box * box + column // box)
            demands[cell, digit] = [("cell", cell, 0), *((kind, line, digit) for kind, line in where)]
            for demand in demands[cell, digit]:
                placements.setdefault(demand, set()).add((cell, digit))

    def place(chosen: tuple[int, int]) -> list[set[tuple[int, int]]]:
        """Strike the demands that a placement meets, and the placements that they exclude."""
        removed = []
        for demand in demands[chosen]:
            for other in placements[demand]:
                for elsewhere in demands[other]:
                    if elsewhere != demand:
                        placements[elsewhere].discard(other)
            removed.append(placements.pop(demand))
        return removed

    def take_back(chosen: tuple[int, int], removed: list[set[tuple[int, int]]]) -> None:
        for demand in reversed(demands[chosen]):
            placements[demand] = removed.pop()
            for other in placements[demand]:
                for elsewhere in demands[other]:
                    if elsewhere != demand:
                        placements[elsewhere].add(other)

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
        tightest = min(placements, key=lambda demand: len(placements[demand]))
        for cell, digit in list(placements[tightest]):
            board[cell] = digit
            removed = place((cell, digit))
            yield from fill()
            take_back((cell, digit), removed)

    yield from fill()
