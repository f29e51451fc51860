"""A study in a paper: five lines compare three strategies on four networks with five seeds; LaTeX sets the rest."""

import re
import shutil
import subprocess
import sys

import pytest

import peerbayes as pb
from shared.commands import HANG

STRATEGIES, TOPOLOGIES, SEEDS = ("exact", "crc", "local"), ("tree", "ring", "star", "complete"), range(5)

# What a researcher writes.
LINES = """\
import peerbayes as pb
small = {"peers": 5, "rows_per_peer": 20, "rounds": 8, "partition": "drift-y", "seed": range(5), "folder": "compare"}
varied = {"strategy": ["exact", "crc", "local"], "topology": ["tree", "ring", "star", "complete"]}
study = pb.study(dataset="digits", **varied, **small)
study.latex("table.tex"), study.plot(x="bytes", facet="topology").write_image("figure.pdf")
"""

PAPER = r"""\documentclass{article}
\usepackage{booktabs}
\usepackage{graphicx}
\begin{document}
\input{table.tex}
\begin{figure}
\includegraphics[width=\linewidth]{figure.pdf}
\end{figure}
\end{document}
"""

# What is wider or higher than its place, by points.
OVERFULL = re.compile(r"^Overfull \\[hv]box \((\d+)", re.MULTILINE)


@pytest.fixture(scope="module")
def paper(tmp_path_factory):
    """The folder in which the five lines were run and the paper was compiled."""
    pytest.importorskip("kaleido")
    for program in ("pdflatex", "pdftotext", "chromium"):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program}")
    folder = tmp_path_factory.mktemp("paper")
    (folder / "paper.tex").write_text(PAPER, encoding="utf-8")
    (folder / "compare.py").write_text(LINES, encoding="utf-8")
    ran(folder, sys.executable, "compare.py")
    ran(folder, "pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex")
    return folder


def ran(folder, *words):
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, errors="replace", timeout=HANG)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.long
def test_five_lines_end_as_a_table_and_a_figure_of_a_paper(paper):
    assert len(LINES.splitlines()) == 5
    study = pb.Study.load(paper / "compare")
    assert len(study.frame) == len(STRATEGIES) * len(TOPOLOGIES) * len(SEEDS) == 60
    assert set(study.frame["status"]) == {"done"}
    text = ran(paper, "pdftotext", "-layout", "paper.pdf", "-")
    # The table: a line for each network, with the mean of every strategy and its interval.
    summary = study.summary().set_index(["topology", "strategy"])
    for topology in TOPOLOGIES:
        cells = [summary.loc[topology, strategy] for strategy in STRATEGIES]
        figures = [rf"{cell['mean']:.3f}\s*±\s*{cell['high'] - cell['mean']:.3f}" for cell in cells]
        assert re.search(rf"{topology}\s+" + r"\s+".join(figures), text), (topology, text)
    # The figure: a panel for each network and a line for each strategy, in words that a reader can search.
    figure = text[text.index("complete") + len("complete") :]
    assert "bytes sent by each peer" in figure and "test error" in figure
    for name in (*TOPOLOGIES, *STRATEGIES):
        assert re.search(rf"\b{name}\b", figure), name


@pytest.mark.long
def test_nothing_of_the_paper_is_wider_than_its_page(paper):
    log = (paper / "paper.log").read_text(errors="replace")
    assert [width for width in OVERFULL.findall(log) if int(width) > 1] == []
    assert "Missing character" not in log
