# SPDX-License-Identifier: Apache-2.0
"""Draws random parameters; a third of every choice and of every range belongs to the held-out part alone."""
import numpy as np


class Draw:
    """Wraps a generator of random numbers and the part (development, later or held_out) that is generated."""

    def __init__(self, seed, part):
        # Seeds of the parts are streams apart, so that no batch is shared.
        self.part = part
        self.rng = np.random.default_rng([{"development": 1, "held_out": 2, "later": 3}[part], *np.atleast_1d(seed)])

    def reserved(self):
        """Says whether this choice must be one that development never sees; half of the held-out choices are."""
        return self.part == "held_out" and self.rng.random() < 0.5

    def choice(self, options):
        """Picks one of a list; of three or more, every third is reserved."""
        options = list(options)
        if len(options) >= 3:
            reserved = options[1::3]
            options = reserved if self.reserved() else [o for i, o in enumerate(options) if i % 3 != 1]
        return options[self.rng.integers(len(options))]

    def any(self, options):
        """Picks one of a list that is not divided between the parts, such as the requests of a batch."""
        options = list(options)
        return options[self.rng.integers(len(options))]

    def uniform(self, low, high):
        """Draws a real; the middle third of the range is reserved."""
        third = (high - low) / 3
        if self.reserved():
            return float(self.rng.uniform(low + third, high - third))
        x = float(self.rng.uniform(0, 2 * third))
        return low + x + (third if x >= third else 0)

    def log_uniform(self, low, high):
        return float(np.exp(self.uniform(np.log(low), np.log(high))))

    def integer(self, low, high):
        """Draws an integer of [low, high], all of it open to both parts."""
        return int(self.rng.integers(low, high + 1))

    def log_integer(self, low, high):
        return int(round(np.exp(self.rng.uniform(np.log(low), np.log(high)))))

    def chance(self, p):
        return bool(self.rng.random() < p)
