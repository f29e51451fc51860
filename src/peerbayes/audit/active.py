"""The active attack: made-up statistics that separate a peer's rows by bisection.

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

from peerbayes.learning.shared_settings import ROUNDS
from peerbayes.learning.strategies import Residual
from peerbayes.model.families import NaiveBayes, Rows

# Half the distance between the two classes of a step, in standardised units; other classes lie ten times as far.
APART, FARTHER = 1000.0, 10.0

# The same where messages keep every sum that honest ones keep: larger ones would be refused as absurd.
LAWFUL_APART = 100.0

# Variance of a made-up class, unless the family's floor is larger: the smaller, the steeper the step.
VARIANCE = 0.05

# Rows of all unused classes as a share of all rows, where sums are kept.
ASIDE = 1e-3

# Tolerance of a count about an integer; how often a cell is cut again beside its mean where the count is off (the cut
# went through a row); and by how many widths of the step.
WHOLE, CUTS_ANEW, BESIDE = 0.01, 4, 15.0

# Relative variance below which all rows of a cell are the same.
SAME = 1e-7


@dataclass(frozen=True)
class Direction:
    """A line through the continuous columns, along which rows are separated."""

    family: NaiveBayes
    start: np.ndarray  # [C, K] S⁰, whose class sums lawful messages keep
    along: np.ndarray  # [Dc] w, of length 1
    lawful: bool = False

    @property
    def width(self) -> float:
        """Width of the step: where p rises from 1/2 to 0.73."""
        variance = self.family.variance_floor if self.lawful else max(VARIANCE, self.family.variance_floor)
        return variance / (2.0 * (LAWFUL_APART if self.lawful else APART))

    def step(self, cut: float, above: int = 0, below: int = 1) -> np.ndarray:
        """Return S [C, K] whose posterior is class `above` where w·x > cut, and class `below` elsewhere."""
        return self._lawful(cut, above, below) if self.lawful else self._free(cut, above, below)

    def _free(self, cut: float, above: int, below: int) -> np.ndarray:
        classes = len(self.start)
        position = np.full(classes, cut + FARTHER * APART)
        position[[above, below]] = cut + APART, cut - APART
        mean = position[:, None] * self.along
        variance = max(VARIANCE, self.family.variance_floor)
        return self._laid_out(np.ones(classes), mean, mean**2 + variance)

    def _lawful(self, cut: float, above: int, below: int) -> np.ndarray:
        """Return the step with the class sums of the start: Σ_c S_c = Σ_c S⁰_c in every column.

        Classes keep the mean second moment, so that with means this far out their variances are negative, and θ puts
        all of them at its floor: equal, as required. The counts of the two classes move the cut.
        """
        classes, total = len(self.start), self.start.sum(axis=0)
        mass = float(total[0])
        _, first, second = (block / mass for block in self.family._split(total[None]))
        position = np.zeros(classes)  # along w, from the mean of the start
        other_classes = np.setdiff1d(np.arange(classes), [above, below])
        position[other_classes] = (
            FARTHER * LAWFUL_APART * np.where(np.arange(other_classes.size) % 2, -1.0, 1.0)
        )
        count = np.full(classes, ASIDE * mass / max(1, other_classes.size))
        centre = cut - float(self.along @ first[0])
        remaining = mass - count[other_classes].sum()
        imbalance = -(float((count * position)[other_classes].sum()) + centre * remaining) / LAWFUL_APART
        position[[above, below]] = centre + LAWFUL_APART, centre - LAWFUL_APART
        count[[above, below]] = (remaining + imbalance) / 2, (remaining - imbalance) / 2
        return self._laid_out(count, first + position[:, None] * self.along, np.tile(second, (classes, 1)),
                              total[self.family.dense_size :] / mass)  # fmt: skip

    def _laid_out(
        self, count: np.ndarray, mean: np.ndarray, second: np.ndarray, cells: np.ndarray | None = None
    ) -> np.ndarray:
        """Return S of classes with these counts [C] and moments [C, Dc]; discrete columns are uninformative."""
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
    """What the peer's answers reveal: Σφ of cells, and YᵀΦ."""

    cells: list[Cell]
    statistics: np.ndarray  # [C, K]
    queries: int  # residuals that the peer was made to compute

    def rows(self, family: NaiveBayes) -> Rows:
        """Return the rows that are alone in their cell, or equal to all others in it."""
        row_features = [
            cell.total / cell.count
            for cell in self.cells
            if cell.count == 1 or (cell.count > 1 and _alike(family, cell))
            for _ in range(cell.count)
        ]
        return read(family, np.array(row_features).reshape(-1, family.size))


@dataclass
class Liar:
    """Queries a peer through its residual callable, [1, C, K] -> [1, C, K], in at most so many rounds."""

    direction: Direction
    residual: Residual
    rounds: int = ROUNDS.default
    queries: int = field(default=0, init=False)

    def attack(self) -> Answers:
        """Separate the rows: first all of them, then the smallest cell that still holds two rows or more."""
        far = APART if not self.direction.lawful else LAWFUL_APART / 2
        honest = self._ask(self.direction.start)  # the first message is sent whatever a neighbour does
        stats = self._ask(self.direction.step(-far))  # all are in class 0: YᵀΦ, but for Σφ in its own row
        weights = np.asarray(self.direction.family.weights(self.direction.start))
        if np.ptp(weights, axis=0).max() == 0:  # p = 1/C at the start: its first message suffices
            everything = (honest[0] - stats[0]) / (1.0 - 1.0 / len(stats))
        else:
            everything = stats[1] - self._ask(self.direction.step(far))[1]
        stats = stats.copy()
        stats[0] += everything
        cells = [Cell(everything)]  # in order along w
        while self.queries < self.rounds and (index := self._next(cells)) is not None:
            cell = cells[index]
            above = stats[0] - self._ask(self.direction.step(self._mean(cell) + self._beside(cell.tries)))[0]
            upper = above - sum((higher.total for higher in cells[index + 1 :]), np.zeros(above.size))
            upper_count = float(upper[0])
            cell.tries += 1
            last = cell.tries > CUTS_ANEW
            if not last and (
                abs(upper_count - round(upper_count)) > WHOLE or not 0 < round(upper_count) < cell.count
            ):
                continue
            if not 0 < round(upper_count) < cell.count:
                continue  # cannot be separated along this line
            cells[index : index + 1] = [Cell(cell.total - upper), Cell(upper)]
        return Answers(cells, stats, self.queries)

    def _ask(self, stats: np.ndarray) -> np.ndarray:
        self.queries += 1
        return np.asarray(self.residual(stats[None].copy()))[0]

    def _next(self, cells: list[Cell]) -> int | None:
        """Return the index of the smallest cell that can still be cut: fewest rounds to the next single row."""
        open_cells = [
            (cell.count, index)
            for index, cell in enumerate(cells)
            if cell.count > 1 and cell.tries <= CUTS_ANEW and not _alike(self.direction.family, cell)
        ]
        return min(open_cells)[1] if open_cells else None

    def _mean(self, cell: Cell) -> float:
        """Return the mean of w·x over a cell; it lies between its rows also where values are missing."""
        count, first, _ = (block[0] for block in self.direction.family._split(cell.total[None]))
        along = self.direction.along
        return float(along @ first) / max(float(along**2 @ count), 1e-12)

    def _beside(self, tries: int) -> float:
        """Return the offset of the next cut from a cell's mean: zero first, then farther out on alternating sides."""
        return self.direction.width * BESIDE * 3.0 ** (tries - 1) * (-1.0) ** tries if tries else 0.0


def random_direction(family: NaiveBayes, rng: np.random.Generator) -> np.ndarray:
    """Draw a direction in which every column counts: [Dc], of length 1."""
    drawn = rng.uniform(0.5, 1.5, family.continuous) * rng.choice([-1.0, 1.0], family.continuous)
    return np.asarray(drawn / np.linalg.norm(drawn))


def read(family: NaiveBayes, features: np.ndarray) -> Rows:
    """Return the rows whose features φ are given: [n, K] -> [n, Dc], [n, Dd]; NaN and −1 where a value is missing."""
    present, values, _ = family._split(features)
    values = np.where(present > 0.5, values, np.nan)
    codes = np.full((len(features), len(family.cardinalities)), -1)
    for column, (cells, _) in enumerate(family.tabled()):
        block = features[:, cells]
        codes[:, column] = np.where(block.max(axis=1) > 0.5, block.argmax(axis=1), -1)
    return Rows(values, codes)


def _alike(family: NaiveBayes, cell: Cell) -> bool:
    """Return whether all rows of a cell are the same, as far as sums show."""
    count, first, second = (block[0] for block in family._split(cell.total[None]))
    rows = np.maximum(count, 1e-12)
    variances = np.maximum(second / rows - (first / rows) ** 2, 0.0)
    same = variances <= SAME * (1.0 + second / max(1, cell.count))
    shares = cell.total[family.dense_size :] / max(1, cell.count)
    return bool(same.all() and (np.minimum(np.abs(shares), np.abs(1.0 - shares)) < WHOLE).all())
