"""The page docs/families.md, from the results of benchmarks/families.py: every number in it is computed here.

mean d > 2 · deviation(d) / √n      a difference d [n], seed by seed on the same rows, counts beyond two standard errors
"""

import numpy as np
import pandas as pd

from peerbayes.experiments.formats import pipes

OURS = ("NB", "bins", "LDA", "QDA", "TAN", "KDB", "AODE", "GA2M")
AUTO, SOFTMAX = "auto", "softmax"
POOLED = ("LR", "RF", "HGB", "EBM")
WEKA = ("Weka TAN", "Weka AODE", "Weka WAODE")
PARTITIONS = {"iid": "i.i.d.", "drift-y": "by class"}
STRATEGIES = {"auto": "`auto`", "tree-sum": "`tree-sum`", "held-out": "`tree-sum`, rows held out"}
FIGURES = ("error", "log_loss", "ece")
STANDARD_ERRORS = 2.0  # beyond which a difference counts
NEAR = 0.005  # the difference that `auto` may have from the best family
NONE = "–"


# --- figures of several models: [dataset × seed, model]


def side_by_side(
    frame: pd.DataFrame, rows: int, partition: str, strategy: str = "auto", figure: str = "error"
) -> pd.DataFrame:
    """Return a figure of all models by dataset and seed: of peers with a strategy, and of pooled rows beside them."""
    of_size = frame[(frame["rows"] == rows) & (frame["problem"] == "")]
    of_peers = (of_size["partition"] == partition) & of_size["strategy"].isin([strategy, ""])
    others = (of_size["partition"] == "pooled") & of_size["model"].isin([*POOLED, *WEKA])
    chosen = of_size[of_peers | others]
    wide = chosen.pivot(index=["dataset", "seed"], columns="model", values=figure)
    order = [name for name in (*OURS, AUTO, SOFTMAX, *POOLED, *WEKA) if name in wide]
    return wide[order]


def is_lower(lower: pd.Series, higher: pd.Series) -> bool:
    """Return whether one figure is below another beyond two standard errors of their difference, seed by seed."""
    difference = (higher - lower).dropna()
    if difference.size < 2:
        return False
    return bool(difference.mean() > STANDARD_ERRORS * difference.std() / np.sqrt(difference.size))


def best_of(figures: pd.DataFrame) -> str | None:
    """Return the model with the lowest mean, if it is lower than each other one beyond chance: [seed, model]."""
    means = figures.mean().dropna()
    if means.size < 2:
        return None
    best = str(means.idxmin())
    clear = all(is_lower(figures[best], figures[other]) for other in means.index if other != best)
    return best if clear else None


def datasets_of(frame: pd.DataFrame, rows: int) -> list[str]:
    """Return the datasets that have figures at this size, in alphabetical order."""
    has_figures = (frame["rows"] == rows) & (frame["problem"] == "")
    return sorted(frame.loc[has_figures, "dataset"].unique())


def set_means(figures: pd.DataFrame) -> pd.DataFrame:
    """Return the mean over the seeds: [dataset, model]."""
    return figures.groupby(level="dataset").mean()


# --- the tables


def number(value: float) -> str:
    return NONE if np.isnan(value) else f"{value:.3f}"


def error_table(figures: pd.DataFrame, groups: tuple[tuple[str, ...], ...]) -> str:
    """Return a line for each dataset: mean errors, the lowest of each group bold where it is clearly the lowest."""
    lines = []
    for dataset, of_set in figures.groupby(level="dataset"):
        marked = {best_of(of_set[[name for name in group if name in of_set]]) for group in groups}
        means = of_set.mean()
        shown = [f"**{number(means[name])}**" if name in marked else number(means[name]) for name in figures]
        lines.append([str(dataset), *shown])
    means = set_means(figures).mean(skipna=False)
    lines.append(["mean", *map(number, means)])
    return "\n".join(pipes(["error", *figures.columns], lines))


def means_table(frame: pd.DataFrame, rows: int, partitions: tuple[str, ...]) -> str:
    """Return a line for each model: error, log loss and calibration error, means over the datasets that all have."""
    lines: dict[str, list[str]] = {}
    count = len(datasets_of(frame, rows))
    for partition in partitions:
        means = {}
        for figure in FIGURES:
            by_set = set_means(
                own_pooled(frame, figure)
                if partition == "pooled"
                else side_by_side(frame, rows, partition, figure=figure)
            )
            means[figure] = by_set.mean().where(by_set.notna().sum() == count)
        once = "pooled" in partitions and partition != "pooled"  # models on pooled rows are shown there
        for model in (name for name in means["error"].index if not (once and name in (*POOLED, *WEKA))):
            shown = [number(means[figure][model]) for figure in FIGURES]
            lines.setdefault(str(model), [NONE] * 3 * partitions.index(partition)).extend(shown)
    names = [PARTITIONS.get(partition, partition) for partition in partitions]
    header = [f"{name}: {what}" for name in names for what in ("error", "log loss", "ECE")]
    width = len(header)
    padded = [[name, *values, *[NONE] * (width - len(values))] for name, values in lines.items()]
    return "\n".join(pipes(["mean", *header], padded))


def strategy_table(frame: pd.DataFrame, rows: int) -> str:
    """Return a line for each family: error / log loss / ECE with each strategy, means over the datasets."""
    names = [name for name in STRATEGIES if ((frame["rows"] == rows) & (frame["strategy"] == name)).any()]
    count, lines = len(datasets_of(frame, rows)), []
    columns = [(strategy, partition) for strategy in names for partition in PARTITIONS]
    by_column = {
        (column, figure): set_means(side_by_side(frame, rows, column[1], column[0], figure))
        for column in columns
        for figure in FIGURES
    }
    for model in (*OURS, AUTO):
        shown = []
        for column in columns:
            values = [
                by_set[model].mean() if model in by_set and by_set[model].notna().sum() == count else np.nan
                for by_set in (by_column[column, figure] for figure in FIGURES)
            ]
            shown.append(NONE if np.isnan(values[0]) else " / ".join(map(number, values)))
        if set(shown) != {NONE}:
            lines.append([model, *shown])
    header = [f"{STRATEGIES[strategy]}, {PARTITIONS[partition]}" for strategy, partition in columns]
    return "\n".join(pipes(["error / log loss / ECE", *header], lines))


def own_pooled(frame: pd.DataFrame, figure: str = "error") -> pd.DataFrame:
    """Return a figure of our estimators, of Weka's and of others on the discrete datasets, all with pooled rows."""
    chosen = frame[(frame["rows"] == 0) & (frame["partition"] == "pooled") & (frame["problem"] == "")]
    wide = chosen.pivot(index=["dataset", "seed"], columns="model", values=figure)
    return wide[[name for name in (*OURS, AUTO, *WEKA, *POOLED) if name in wide]]


# --- what follows from them, in words


def listed(differences: dict[str, float]) -> str:
    """Return datasets with differences, the largest first."""
    ordered = sorted(differences.items(), key=lambda item: -abs(item[1]))
    return ", ".join(f"{name} {value:.3f}" for name, value in ordered) or "none"


def beside(figures: pd.DataFrame, ours: str | None, other: str) -> tuple[dict[str, float], dict[str, float]]:
    """Return by how much another model has fewer errors, and more, where that is beyond two standard errors.

    ours  one of our models; None: on each dataset the family with the lowest mean error
    """
    better, worse = {}, {}
    for dataset, of_set in figures.groupby(level="dataset"):
        families = [name for name in OURS if name in of_set and of_set[name].notna().any()]
        if not families:
            continue
        own = ours or str(of_set[families].mean().idxmin())
        pair = of_set[[own, other]].dropna()
        difference = float((pair[own] - pair[other]).mean()) if len(pair) else np.nan
        if is_lower(pair[other], pair[own]):
            better[str(dataset)] = difference
        elif is_lower(pair[own], pair[other]):
            worse[str(dataset)] = -difference
    return better, worse


def others_table(figures: pd.DataFrame, ours: str | None, others: tuple[str, ...]) -> str:
    """Return a line for each other model: where it beats us and by how much, and where it loses."""
    lines = []
    for other in (name for name in others if name in figures):
        compared = figures[other].dropna().index.get_level_values("dataset").nunique()
        better, worse = beside(figures, ours, other)
        level = compared - len(better) - len(worse)
        lines.append(
            [other, f"{len(better)}: {listed(better)}", f"{len(worse)}: {listed(worse)}", str(level)]
        )
    return "\n".join(pipes(["model", "fewer errors than ours on", "more errors on", "neither"], lines))


def lead(tables: list[pd.DataFrame]) -> str:
    """Return how many families are the best of some dataset, and what follows."""
    best: set[str] = set()
    for figures in tables:
        by_set = set_means(figures[[name for name in OURS if name in figures]]).dropna(how="all")
        best |= set(by_set.idxmin(axis=1))
    if len(best) < 2:
        return ""
    return (
        f"No family is the best everywhere: {len(best)} of them have the fewest errors on some set. Unless you know "
        'how your columns depend on each other, let held-out rows choose: `family="auto"`.'
    )


def summary(figures: pd.DataFrame, where: str) -> str:
    """Return in a paragraph which family is best where, and how far `auto` and others are from it."""
    by_set = set_means(figures)
    families = [name for name in OURS if name in by_set]
    lowest = by_set[families].min(axis=1)
    winner = by_set[families].dropna(how="all").idxmin(axis=1)
    winners = winner.groupby(winner).groups
    parts = [
        f"{name} on {len(sets)} ({', '.join(map(str, sets))})"
        for name, sets in sorted(winners.items(), key=lambda item: -len(item[1]))
    ]
    text = [f"**{where}**: the family with the fewest errors is {'; '.join(parts)}."]
    whole = by_set[families].mean(skipna=False).dropna()
    if whole.size:
        text.append(
            f"One family for all sets: {whole.idxmin()} errs least, {whole.min():.3f} in the mean; the best family "
            f"of each set in hindsight {lowest.mean():.3f}."
        )
    if AUTO in by_set:
        gap = (by_set[AUTO] - lowest).dropna()
        text.append(
            f"`auto` errs {by_set[AUTO].mean():.3f}, and is within {NEAR} of the best family in hindsight on "
            f"{int((gap <= NEAR).sum())} of {gap.size} sets."
        )
    means = by_set[[name for name in (SOFTMAX, *POOLED) if name in by_set]].mean(skipna=False).dropna()
    if means.size:
        text.append(f"Others: {', '.join(f'{name} {value:.3f}' for name, value in means.items())}.")
    return " ".join(text)


def coverage(counts: dict[str, int], most: int) -> str:
    """Return in words how many seeds each dataset has, where some have fewer than most; empty: all have as many."""
    if min(counts.values()) == most:
        return ""
    if len(set(counts.values())) == 1:
        return f"{next(iter(counts.values()))} on all sets"
    return ", ".join(f"{count} on {name}" for name, count in counts.items() if count < most)


def seeds_note(frame: pd.DataFrame) -> str:
    """Return how many seeds the figures have, and which have fewer, or none."""
    done = frame[frame["problem"] == ""]
    most = int(done["seed"].nunique())
    fewer: dict[str, list[str]] = {}
    for (rows, strategy, model), cells in done.groupby(["rows", "strategy", "model"]):
        sets = datasets_of(frame, rows)
        seeds = cells.groupby(["partition", "dataset"])["seed"].nunique().unstack("dataset", fill_value=0)
        lowest = seeds.reindex(columns=sets, fill_value=0).min()
        if told := coverage({name: int(lowest[name]) for name in sets}, most):
            size = f"50 × {rows}" if rows else "discrete sets"
            how = f", `{strategy}`" if strategy not in ("", "auto") else ""
            fewer.setdefault(f"{size}{how}: {told}", []).append(model)
    lines = [f"- {', '.join(models)}, {told}" for told, models in fewer.items()]
    note = f"Each figure is a mean over {most} seeds"
    return f"{note}." if not lines else "\n".join([f"{note}, but for (0: not run)", "", *lines])


def problems_note(frame: pd.DataFrame) -> str:
    """Return which models refuse which datasets."""
    refused = frame[frame["problem"] != ""].groupby(["model", "dataset"])["problem"].first()
    refused = refused[~refused.str.contains("training rows are requested")]
    if refused.empty:
        return ""
    pairs = [f"{model} on {dataset}" for model, dataset in refused.index]
    return f"Refused (too many joint values of what a row misses, or too large a model): {', '.join(pairs)}."


def page(frame: pd.DataFrame) -> str:
    """Return the page."""
    sizes = [rows for rows in (50, 320) if datasets_of(frame, rows)]
    shown = {
        (rows, partition): side_by_side(frame, rows, partition) for rows in sizes for partition in PARTITIONS
    }
    parts = [
        "# Families compared",
        INTRODUCTION,
        seeds_note(frame),
        problems_note(frame),
        "## What to choose",
    ]
    parts.append(lead(list(shown.values())))
    for (rows, partition), figures in shown.items():
        parts.append(summary(figures, f"50 × {rows} rows, {PARTITIONS[partition]}"))
    for (rows, partition), figures in shown.items():
        if not set(figures) & {SOFTMAX, *POOLED}:
            continue
        where = f"50 × {rows} rows, {PARTITIONS[partition]}"
        parts += [
            f"**Where others beat us, {where}**: against the best of our families on each set, chosen in "
            "hindsight (which favours us), by the difference of the errors, where it is beyond two standard errors.",
            others_table(figures, None, (SOFTMAX, *POOLED)),
        ]
        if AUTO in figures:
            parts += ["The same against `auto`:", others_table(figures, AUTO, (SOFTMAX, *POOLED))]
    for rows in sizes:
        parts.append(f"## 50 peers × {rows} rows")
        for partition, told in PARTITIONS.items():
            figures = shown[rows, partition]
            parts += [f"### {told[0].upper()}{told[1:]}", error_table(figures, ((*OURS, SOFTMAX), POOLED))]
        parts += [f"### Means, 50 × {rows}", MEANS, means_table(frame, rows, tuple(PARTITIONS))]
        parts += [f"### Strategies, 50 × {rows}", STRATEGIES_TEXT, strategy_table(frame, rows)]
    if datasets_of(frame, 0):
        parts += ["## Discrete datasets, beside Weka", DISCRETE_TEXT]
        parts += [error_table(own_pooled(frame), ((*OURS, *WEKA, *POOLED),))]
        for partition, told in PARTITIONS.items():
            figures = side_by_side(frame, 0, partition)
            parts += [
                f"The same rows held by 50 peers, {told}:",
                error_table(figures[[name for name in figures if name not in (*WEKA, *POOLED)]], ((*OURS, SOFTMAX),)),
            ]  # fmt: skip
        parts.append(means_table(frame, 0, ("pooled", *PARTITIONS)))
    codes = ", ".join(sorted(frame["code"].unique()))
    parts.append(
        f"Computed by peerbayes {codes}: `python benchmarks/families.py --results docs/families.parquet "
        "--document docs/families.md`."
    )
    return "\n\n".join(part for part in parts if part) + "\n"


INTRODUCTION = """\
Every family over 50 peers on a random tree, 64 rounds of the default strategy `auto`, beside other models that have \
all rows in one place. *By class*: rows sorted by class, about one class per peer. Columns of at most ten values are \
discrete, as in the paper, and a gap in text is a value of its own (`secondary:gaps`). NB is naive Bayes with \
Gaussian numbers, *bins* the same with numbers in bins; LDA, QDA, TAN and KDB have Gaussian numbers, AODE and GA2M \
bins. Naive Bayes starts uniformly, GA2M from the marginals, all others from maximum likelihood; the start is agreed \
exactly, as between real peers. `softmax` is softmax regression by exact diffusion, one matrix per neighbour and \
round as the families send, with a step chosen by trial runs whose messages are not counted ([other \
methods](baselines.md)); these figures are from before trials \
chose a penalty as well. LR, RF, HGB and EBM are logistic regression, random forest, histogram gradient boosting and \
explainable boosting with the defaults of scikit-learn and interpret, on the pooled rows. Test rows are the same for \
all, up to 5,000; models of peers are the mean over ten of the fifty. Log loss in nats, of probabilities of at least \
10⁻⁶; ECE is the expected calibration error of 15 bins.

**Bold**: the lowest of the models over peers, and the lowest of those on pooled rows, where the difference from \
each other one, seed by seed, is beyond two standard errors. – : not run, or refused."""

MEANS = "Means over the sets, for models that have figures on all of them; those on pooled rows are in both halves."

STRATEGIES_TEXT = """\
What a family reaches depends on how peers agree: `auto` chooses between `exact` and `relay`, which mix with \
neighbours; `tree-sum` adds exactly along the tree. With rows held out, a tenth of each peer's rows choose the round \
and scale the probabilities (`hold_out = 0.1`, `select = "held-out"`)."""

DISCRETE_TEXT = """\
Two thirds of the rows to learn from, the others to test on; columns of pendigits in ten bins of equally many rows. \
Ours are calibrated estimators. Weka's are BayesNet with the search TAN, AODE and WAODE of version 3.6.14, on the \
same rows; gaps (soybean) are filled with modes for TAN and WAODE."""
