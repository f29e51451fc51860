"""The active attack: statistics that are made up so that a peer's rows answer by halves, and then one by one.

The only neighbour of a peer decides at which statistics S the peer's next residual is taken. It chooses S so that the
posterior is a step along a direction w: class A above the cut a, class B below, no other class anywhere. Then

    R_A(S) = Y_AᵀΦ − Σ_{w·x > a} φ(x)

and Y_AᵀΦ does not depend on S. So every round gives Σφ over a half space: how many rows it holds, their sums and cells.
Cut at its own mean, a cell of two rows or more falls into two that are not empty; a cell with one row is that row.
After m − 1 cuts every row of m is known, with its categories. Labels follow from YᵀΦ: see `labelling`.

For naive Bayes with a continuous column. Classes lie on a line, with equal variances v:

    μ_A = (a + L)·w,   μ_B = (a − L)·w,   μ_others = (a + 10L)·w          log p_A/p_B = (2L/v)·(w·x − a)
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from peerbayes.families import NaiveBayes, Rows
from peerbayes.strategies import Residual

# Half the distance between the two classes of a step, in standardised units; the others lie ten times as far.
APART, FARTHER = 1000.0, 10.0

# The same where the messages keep every sum that honest ones keep: larger ones would be called absurd.
LAWFUL_APART = 100.0

# The variance of a class that is made up, where the family's floor is not larger: the smaller, the steeper the step.
VARIANCE = 0.05

# Rows of a class that is in nobody's way, as a share of all, where sums are kept.
ASIDE = 1e-3

# How far a count may be from a whole number, how often a cell is cut again beside its mean where it is farther (the cut
# went through a row), and by how many widths of the step.
WHOLE, CUTS_ANEW, BESIDE = 0.01, 4, 15.0

# Second moments beside their size below which all rows of a cell are the same.
SAME = 1e-7


@dataclass(frozen=True)
class Direction:
    """A line through the continuous columns, on which rows are cut apart."""

    family: NaiveBayes
    start: np.ndarray  # [C, K] S⁰, whose class sums lawful messages keep
    along: np.ndarray  # [Dc] w, of length 1
    lawful: bool = False

    @property
    def width(self) -> float:
        """Of the step: where p goes from 1/2 to 0.73."""
        variance = self.family.variance_floor if self.lawful else max(VARIANCE, self.family.variance_floor)
        return variance / (2.0 * (LAWFUL_APART if self.lawful else APART))

    def step(self, cut: float, above: int = 0, below: int = 1) -> np.ndarray:
        """S [C, K] whose posterior is class `above` where w·x > cut, and class `below` elsewhere."""
        return self._kept(cut, above, below) if self.lawful else self._free(cut, above, below)

    def _free(self, cut: float, above: int, below: int) -> np.ndarray:
        classes = len(self.start)
        place = np.full(classes, cut + FARTHER * APART)
        place[[above, below]] = cut + APART, cut - APART
        mean = place[:, None] * self.along
        variance = max(VARIANCE, self.family.variance_floor)
        return self._laid_out(np.ones(classes), mean, mean**2 + variance)

    def _kept(self, cut: float, above: int, below: int) -> np.ndarray:
        """The same with the class sums of the start: Σ_c S_c = Σ_c S⁰_c in every column.

        Classes keep the mean second moment, so that with means this far out their variances are negative, and θ puts
        all of them at its floor: equal, as they should be. How many rows each of the two has moves the cut.
        """
        classes, total = len(self.start), self.start.sum(axis=0)
        mass = float(total[0])
        _, first, second = (part / mass for part in self.family._split(total[None]))
        place = np.zeros(classes)  # along w, from the mean of the start
        others = np.setdiff1d(np.arange(classes), [above, below])
        place[others] = FARTHER * LAWFUL_APART * np.where(np.arange(others.size) % 2, -1.0, 1.0)
        count = np.full(classes, ASIDE * mass / max(1, others.size))
        at = cut - float(self.along @ first[0])
        left = mass - count[others].sum()
        uneven = -(float((count * place)[others].sum()) + at * left) / LAWFUL_APART
        place[[above, below]] = at + LAWFUL_APART, at - LAWFUL_APART
        count[[above, below]] = (left + uneven) / 2, (left - uneven) / 2
        return self._laid_out(count, first + place[:, None] * self.along, np.tile(second, (classes, 1)),
                              total[self.family.dense_size :] / mass)  # fmt: skip

    def _laid_out(
        self, count: np.ndarray, mean: np.ndarray, second: np.ndarray, cells: np.ndarray | None = None
    ) -> np.ndarray:
        """S of classes with these counts [C], moments [C, Dc] and cells: none says anything by a discrete column."""
        sizes = np.asarray(self.family.cardinalities, dtype=int)
        even = np.repeat(1.0 / sizes, sizes) if sizes.size else np.zeros(0)
        present = [np.ones(mean.shape)] if self.family.missing else []
        row = np.concatenate(
            [np.ones((len(count), 1)), *present, mean, second,
             np.broadcast_to(even if cells is None else cells, (len(count), even.size))], axis=1,
        )  # fmt: skip
        return count[:, None] * row


@dataclass
class Cell:
    """Rows between two cuts: their Σφ."""

    total: np.ndarray  # [K]
    tries: int = 0

    @property
    def count(self) -> int:
        return round(float(self.total[0]))


@dataclass(frozen=True)
class Answers:
    """What the peer's answers gave: Σφ of cells, and YᵀΦ."""

    cells: list[Cell]
    statistics: np.ndarray  # [C, K]
    asked: int  # residuals that the peer was led to compute

    def rows(self, family: NaiveBayes) -> Rows:
        """The rows that stand alone in their cell, or with their like."""
        found = [
            cell.total / cell.count
            for cell in self.cells
            if cell.count == 1 or (cell.count > 1 and _alike(family, cell))
            for _ in range(cell.count)
        ]
        return read(family, np.array(found).reshape(-1, family.size))


@dataclass
class Liar:
    """Asks a peer through its residual callable, [1, C, K] -> [1, C, K], in at most so many rounds."""

    direction: Direction
    residual: Residual
    rounds: int = 64
    asked: int = field(default=0, init=False)

    def attack(self) -> Answers:
        """Take the rows apart: first everything, then the smallest cell that still holds two rows or more."""
        far = APART if not self.direction.lawful else LAWFUL_APART / 2
        honest = self._ask(self.direction.start)  # the first message is sent whatever a neighbour does
        stats = self._ask(self.direction.step(-far))  # all are in class 0: YᵀΦ, but for Σφ in its own row
        weights = np.asarray(self.direction.family.weights(self.direction.start))
        if np.ptp(weights, axis=0).max() == 0:  # p = 1/C at the start: what it said is enough
            everything = (honest[0] - stats[0]) / (1.0 - 1.0 / len(stats))
        else:
            everything = stats[1] - self._ask(self.direction.step(far))[1]
        stats = stats.copy()
        stats[0] += everything
        cells = [Cell(everything)]  # in order along w
        while self.asked < self.rounds and (place := self._next(cells)) is not None:
            cell = cells[place]
            above = stats[0] - self._ask(self.direction.step(self._mean(cell) + self._beside(cell.tries)))[0]
            upper = above - sum((other.total for other in cells[place + 1 :]), np.zeros(above.size))
            told = float(upper[0])
            cell.tries += 1
            last = cell.tries > CUTS_ANEW
            if not last and (abs(told - round(told)) > WHOLE or not 0 < round(told) < cell.count):
                continue
            if not 0 < round(told) < cell.count:
                continue  # not to be had along this line
            cells[place : place + 1] = [Cell(cell.total - upper), Cell(upper)]
        return Answers(cells, stats, self.asked)

    def _ask(self, stats: np.ndarray) -> np.ndarray:
        self.asked += 1
        return np.asarray(self.residual(stats[None].copy()))[0]

    def _next(self, cells: list[Cell]) -> int | None:
        """The smallest cell that can still be cut: fewest rounds to the next row that stands alone."""
        open_cells = [
            (cell.count, place)
            for place, cell in enumerate(cells)
            if cell.count > 1 and cell.tries <= CUTS_ANEW and not _alike(self.direction.family, cell)
        ]
        return min(open_cells)[1] if open_cells else None

    def _mean(self, cell: Cell) -> float:
        """The mean of w·x over a cell; between its rows also where some miss values."""
        count, first, _ = (part[0] for part in self.direction.family._split(cell.total[None]))
        along = self.direction.along
        return float(along @ first) / max(float(along**2 @ count), 1e-12)

    def _beside(self, tries: int) -> float:
        """How far from a cell's mean the next cut is: nothing at first, then farther and farther, on both sides."""
        return self.direction.width * BESIDE * 3.0 ** (tries - 1) * (-1.0) ** tries if tries else 0.0


def some_direction(family: NaiveBayes, rng: np.random.Generator) -> np.ndarray:
    """A random direction in which every column counts: [Dc], of length 1."""
    drawn = rng.uniform(0.5, 1.5, family.continuous) * rng.choice([-1.0, 1.0], family.continuous)
    return np.asarray(drawn / np.linalg.norm(drawn))


def read(family: NaiveBayes, features: np.ndarray) -> Rows:
    """The rows of which these are φ: [n, K] -> [n, Dc], [n, Dd]; NaN and −1 where a value is missing."""
    present, values, _ = family._split(features)
    values = np.where(present > 0.5, values, np.nan)
    codes = np.full((len(features), len(family.cardinalities)), -1)
    for place, (cells, _) in enumerate(family.tabled()):
        block = features[:, cells]
        codes[:, place] = np.where(block.max(axis=1) > 0.5, block.argmax(axis=1), -1)
    return Rows(values, codes)


def _variances(family: NaiveBayes, total: np.ndarray) -> np.ndarray:
    """Of each continuous column over the rows of a cell: [K] -> [Dc]."""
    count, first, second = (part[0] for part in family._split(total[None]))
    rows = np.maximum(count, 1e-12)
    return np.maximum(second / rows - (first / rows) ** 2, 0.0)


def _alike(family: NaiveBayes, cell: Cell) -> bool:
    """Whether all rows of a cell are the same, as far as sums tell."""
    _, _, second = (part[0] for part in family._split(cell.total[None]))
    same = _variances(family, cell.total) <= SAME * (1.0 + second / max(1, cell.count))
    shares = cell.total[family.dense_size :] / max(1, cell.count)
    return bool(same.all() and (np.minimum(np.abs(shares), np.abs(1.0 - shares)) < WHOLE).all())
