"""ReLU gadgets of the appendix ("Approximating Discontinuous Piecewise Functions") and a few more.

Each gadget takes a layer and forms over its rows, adds hidden units to the layer and returns a form over these units.
A step or rectangle has values between 0 and 1 only in its trifling region, an interval of length epsilon left of each
edge.
"""

from fractions import Fraction

from looped.theory.network import HALF, FeedForward, Form, Number, total


def step(layer: FeedForward, x: Form, epsilon: Number, closed_by: Form | Number = 0) -> Form:
    """Return 1 for x >= 0 and 0 for x <= -epsilon; two units. `closed_by` >= 1 + x/epsilon keeps it at 0."""
    scaled = x / epsilon - closed_by
    return layer.relu(scaled + 1) - layer.relu(scaled)


def rect(layer: FeedForward, x: Form, left: Number, right: Number, epsilon: Number) -> Form:
    """Return 1 on [left, right - epsilon] and 0 outside (left - epsilon, right); four units."""
    rising = step(layer, x - left, epsilon)
    falling = layer.relu((right - x) / epsilon) - layer.relu((right - epsilon - x) / epsilon)
    return rising + falling - 1


def hat(layer: FeedForward, x: Form) -> Form:
    """Return 1 at x = 0 and 0 at every other integer; three units."""
    return layer.relu(x - 1) - 2 * layer.relu(x) + layer.relu(x + 1)


class Pulse:
    """impulse_theta(x, t): x where t = theta and 0 at every other integer t, for |x| <= bound.

    It needs two units per value and two that all values share. With bound >= 2|x| the time t may be off by up to 1/4
    at theta and at its two neighbours.
    """

    def __init__(self, layer: FeedForward, time: Form, theta: Number, bound: Number):
        self.layer, self.slope = layer, 2 * bound
        self.after, self.before = time - theta + HALF, time - theta - HALF
        self.clock = self.slope * (layer.relu(self.before) - layer.relu(self.after))

    def __call__(self, x: Form | Number) -> Form:
        rising = self.layer.relu(self.slope * self.after + x)
        return rising - self.layer.relu(self.slope * self.before + x) + self.clock


def shift_left(layer: FeedForward, beta: str, bits: int, closed: Form | Number = 0, digit_bits: int = 1) -> Form:
    """Remove the first digit of beta in base 2^m, m = `digit_bits`, and return that digit; 2^(m+1) - 1 units.

    beta is in [0, 1) with `bits` binary digits after the point. While `closed` is 1, beta stays and the digit is 0.
    """
    precision, base = 2**bits, 2**digit_bits
    value = Form({beta: 1})
    closed_by = precision * Form.of(closed)
    levels = [
        step(layer, value - Fraction(j, base), Fraction(1, precision), closed_by=closed_by) for j in range(1, base)
    ]
    digit = total(levels)
    layer.add(beta, (base - 1) * layer.relu(value - 2 * Form.of(closed)) - digit)
    return digit
