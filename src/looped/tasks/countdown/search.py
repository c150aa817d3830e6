"""Inner loops of Countdown on tokens: draw puzzles with a solution, find the first solution, check answers."""

import numpy as np
from numba import uint64

from looped.tasks import rng
from looped.tasks.jit import compiled

# Tokens: the blank, four operators, the equals sign, then one token for each number from 0 on.
BLANK = 0
OPERATORS = "+*-/"
PLUS, TIMES, MINUS, OVER = 1, 2, 3, 4
EQUALS = 5
ZERO = 6

STEP_TOKENS = 5  # a, operator, b, =, c
MAX_COUNT = 4
MAX_TRIES = 1_000_000


@compiled(nogil=True)
def draw_examples(sequences, seed, split, indices, first_bucket, end_bucket, count, max_input, targets, largest):
    """Fill in one puzzle with its solution per index. Return False if an example needs more than MAX_TRIES draws.

    Numbers and target are drawn again, from the example's own stream, until they fit the split and have a solution.
    """
    numbers = np.empty(count, dtype=np.int64)
    steps = np.empty((MAX_COUNT - 1, 4), dtype=np.int64)
    for row in range(len(indices)):
        state = rng.start(seed, split, indices[row])
        tries = 0
        while True:
            tries += 1
            if tries > MAX_TRIES:
                return False
            for i in range(count):
                state, number = rng.below(state, max_input)
                numbers[i] = 1 + number
            state, which = rng.below(state, len(targets))
            bucket = _content_bucket(numbers, count)
            if first_bucket <= bucket < end_bucket and search(numbers, count, targets[which], largest, steps):
                break
        _lay_out(sequences[row], numbers, count, targets[which], steps)
    return True


@compiled(nogil=True)
def _content_bucket(numbers, count):
    """Return the bucket of the sorted numbers. The target does not matter, so equal numbers stay in one split."""
    digest = uint64(count)
    previous = np.int64(0)
    used = 0
    while used < count:
        smallest = np.int64(1 << 32)
        for i in range(count):
            if previous < numbers[i] < smallest:
                smallest = numbers[i]
        for i in range(count):
            if numbers[i] == smallest:
                digest = rng.absorb(digest, smallest)
                used += 1
        previous = smallest
    return rng.bucket(digest)


@compiled(nogil=True)
def search(numbers, count, target, largest, steps):
    """Write the steps of the first solution and return True, or return False if there is none.

    The search is depth first over the pairs (i, j) with i < j, and tries + * - / for each pair. Sums and products keep
    the order of the numbers; differences and quotients put the larger number first. The result of a step is appended to
    the remaining numbers. `steps` holds the last step first. The levels are separate functions of plain integers,
    because a recursion over arrays was 18 times slower.
    """
    if count == 2:
        return _search_two(numbers[0], numbers[1], target, steps)
    if count == 3:
        return _search_three(numbers[0], numbers[1], numbers[2], target, largest, steps)
    for i in range(3):
        for j in range(i + 1, 4):
            a, b = numbers[i], numbers[j]
            first, second = _other_two(i, j)
            for operator in range(PLUS, OVER + 1):
                result = _result(a, b, operator)
                if 0 <= result <= largest and _search_three(
                    numbers[first], numbers[second], result, target, largest, steps
                ):
                    _store_step(steps[2], a, b, operator, result)
                    return True
    return False


@compiled(nogil=True)
def _search_three(x, y, z, target, largest, steps):
    for pair in range(3):
        a, b, rest = (x, y, z) if pair == 0 else (x, z, y) if pair == 1 else (y, z, x)
        for operator in range(PLUS, OVER + 1):
            result = _result(a, b, operator)
            if 0 <= result <= largest and _search_two(rest, result, target, steps):
                _store_step(steps[1], a, b, operator, result)
                return True
    return False


@compiled(nogil=True)
def _search_two(a, b, target, steps):
    """Find the operator that makes the target from the last two numbers. This is the hot spot: it never divides."""
    high, low = max(a, b), min(a, b)
    if a + b == target:
        operator = PLUS
    elif a * b == target:
        operator = TIMES
    elif high - low == target:
        operator = MINUS
    elif low > 0 and low * target == high:
        operator = OVER
    else:
        return False
    _store_step(steps[0], a, b, operator, target)
    return True


@compiled(nogil=True)
def _result(a, b, operator):
    """Return the result of a step, or -1 if a quotient is not a whole number."""
    if operator == PLUS:
        return a + b
    if operator == TIMES:
        return a * b
    high, low = max(a, b), min(a, b)
    if operator == MINUS:
        return high - low
    return high // low if low > 0 and high % low == 0 else -1


@compiled(nogil=True)
def _other_two(i, j):
    """Return the two of the places 0, 1, 2, 3 that are neither i nor j, in order."""
    first = 0 if i > 0 else 1 if j > 1 else 2
    return first, 6 - i - j - first


@compiled(nogil=True)
def _store_step(step, a, b, operator, result):
    larger_first = operator in (MINUS, OVER)
    step[0] = max(a, b) if larger_first else a
    step[1] = operator
    step[2] = min(a, b) if larger_first else b
    step[3] = result


@compiled(nogil=True)
def _lay_out(sequence, numbers, count, target, steps):
    for i in range(count):
        sequence[i] = ZERO + numbers[i]
    sequence[count] = ZERO + target
    place = count + 1
    for k in range(count - 2, -1, -1):
        sequence[place] = ZERO + steps[k, 0]
        sequence[place + 1] = steps[k, 1]
        sequence[place + 2] = ZERO + steps[k, 2]
        sequence[place + 3] = EQUALS
        sequence[place + 4] = ZERO + steps[k, 3]
        place += STEP_TOKENS


@compiled(nogil=True)
def check_answers(inputs, outputs, count):
    """Return one boolean per example: True if the outputs are a valid solution.

    Every step must be true and use numbers that are left, each once, and the last result must be the target.
    """
    valid = np.zeros(len(inputs), dtype=np.bool_)
    hand = np.empty(count, dtype=np.int64)
    for row in range(len(inputs)):
        hand[:] = inputs[row, :count]
        right = True
        for step in range(count - 1):
            place = count + 1 + STEP_TOKENS * step
            a, operator, b = outputs[row, place], outputs[row, place + 1], outputs[row, place + 2]
            result = outputs[row, place + 4]
            left = count - step
            right = _take(hand, left, a) and _take(hand, left - 1, b) and outputs[row, place + 3] == EQUALS
            if not right or result < ZERO:
                right = False
                break
            x, y, z = a - ZERO, b - ZERO, result - ZERO
            right = (
                (operator == PLUS and x + y == z)
                or (operator == TIMES and x * y == z)
                or (operator == MINUS and x - y == z)
                or (operator == OVER and y != 0 and x == y * z)
            )
            if not right:
                break
            hand[left - 2] = result
        valid[row] = right and hand[0] == inputs[row, count]
    return valid


@compiled(nogil=True)
def _take(hand, left, token):
    """Remove one token from the first `left` tokens of the hand. Return False if the token is missing."""
    for i in range(left):
        if hand[i] == token:
            hand[i] = hand[left - 1]
            return True
    return False
