"""The notebooks of examples/, run and written back with their outputs: python tools/notebooks.py [--check] [NAME…].

Outputs are made here and nowhere else: figures are PNG images, nothing names this machine, and a notebook says by which
cells its outputs were made. --check runs the notebooks and compares, loosely, with what is stored: the same words and
about the same numbers. Needs the extra `test`, and Chromium for the figures.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import math
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER, IMAGES = ROOT / "examples", ROOT / "docs" / "images"
TIMEOUT = 600  # seconds for a cell, on a busy machine
PNG = "image/png"
COLOURS = 128  # of a figure
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*\.?\d*(?:e[+-]?\d+)?")
RELATIVE, ABSOLUTE = 0.1, 0.02  # by how much a number may differ between processors and versions
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def names() -> list[str]:
    """Return the names of all notebooks."""
    return sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def read(name: str) -> Any:
    """Return the stored notebook of this name."""
    import nbformat

    return nbformat.read(FOLDER / f"{name}.ipynb", 4)


def sources_digest(notebook: Any) -> str:
    """Return the digest of all cells, by which outputs are known to be theirs."""
    sources = "\0".join(f"{cell.cell_type}\0{cell.source}" for cell in notebook.cells)
    return hashlib.sha256(sources.encode()).hexdigest()[:16]


def executed(name: str) -> Any:
    """Return the notebook with the outputs of a new process, in an empty folder, and no other traces of it."""
    import nbclient

    notebook = read(name)
    with tempfile.TemporaryDirectory() as folder:
        client = nbclient.NotebookClient(
            notebook, timeout=TIMEOUT, kernel_name="python3", record_timing=False,
            resources={"metadata": {"path": folder}},
        )  # fmt: skip
        client.execute(env=os.environ | ONE_THREAD)
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "peerbayes": {"sources": sources_digest(notebook)},
    }
    for cell in notebook.cells:
        picture = cell.metadata.get("picture")
        cell.metadata = {} if picture is None else {"picture": picture}
        for output in cell.get("outputs", ()):
            if output.output_type == "stream" and output.name == "stderr":
                raise SystemExit(f"{name}.ipynb writes to stderr: {output.text}")
            if "data" in output:
                keep = (PNG,) if PNG in output.data else ("text/html", "text/plain")
                output.data = {kind: output.data[kind] for kind in keep if kind in output.data}
                if PNG in output.data:
                    output.data[PNG] = small(output.data[PNG])
                output.metadata = {}
    return notebook


def small(content: str) -> str:
    """Return a picture in base64 with few colours, which lines and text do not need: a third of its size."""
    from PIL import Image

    written = io.BytesIO()
    with Image.open(io.BytesIO(base64.b64decode(content))) as picture:
        picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(written, "PNG", optimize=True)
    return base64.b64encode(written.getvalue()).decode() + "\n"


def images(notebook: Any) -> Iterator[tuple[str, bytes]]:
    """Yield the figures, each with the name that its cell gives it, or with none."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if PNG in output.get("data", {}):
                yield cell.metadata.get("picture", ""), base64.b64decode(output.data[PNG])


def texts(notebook: Any) -> Iterator[str]:
    """Yield every output that is a text."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            yield output.get("text", "") or output.get("data", {}).get("text/plain", "")


def kinds_of(cell: Any) -> list[list[str]]:
    """Return what kinds of data each output of a cell has."""
    return [sorted(output.get("data", {"text": ""})) for output in cell.get("outputs", ())]


def alike(before: str, after: str) -> bool:
    """Return whether two texts have the same words and about the same numbers."""
    words = [re.sub(r"\s+", " ", NUMBER.sub("#", text)) for text in (before, after)]
    numbers = [
        [float(number.replace(",", "")) for number in NUMBER.findall(text)] for text in (before, after)
    ]
    return words[0] == words[1] and all(
        math.isclose(one, other, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
        for one, other in zip(*numbers, strict=True)
    )


def differences(stored: Any, fresh: Any) -> list[str]:
    """Return what differs between the outputs of two notebooks by more than processors do."""
    problems = []
    if stored.metadata.get("peerbayes", {}).get("sources") != sources_digest(stored):
        problems.append("cells have changed since the outputs were made")
    for number, (before, after) in enumerate(zip(stored.cells, fresh.cells, strict=True)):
        stored_kinds, fresh_kinds = (kinds_of(cell) for cell in (before, after))
        if stored_kinds != fresh_kinds:
            problems.append(f"cell {number} has outputs {stored_kinds}, and now {fresh_kinds}")
    for before, after in zip(texts(stored), texts(fresh), strict=False):
        if not alike(before, after):
            problems.append(f"an output was\n{before}\nand is now\n{after}")
    return problems


def markdown(name: str) -> tuple[str, dict[str, bytes]]:
    """Return a stored notebook as a page, and the images that it shows by their names."""
    notebook, lines, pictures = read(name), [], {}
    for cell in notebook.cells:
        lines.append(cell.source if cell.cell_type == "markdown" else f"```python\n{cell.source}\n```")
        for output in cell.get("outputs", ()):
            if PNG in output.get("data", {}):
                file = f"{name}-{len(pictures) + 1}.png"
                pictures[file] = base64.b64decode(output.data[PNG])
                lines.append(f"![The figure that the code above draws]({file})")
            else:
                text = output.get("text") or output.data["text/plain"]
                lines.append(f"```text\n{text.rstrip()}\n```")
    download = f"[The notebook itself](../repository/examples/{name}.ipynb)"
    return "\n\n".join([*lines, download]) + "\n", pictures


def main() -> None:
    import nbformat

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with what is stored, and write nothing")
    parser.add_argument("names", nargs="*", default=names(), help="of notebooks; all by default")
    chosen, problems = parser.parse_args(), []
    for name in chosen.names:
        fresh = executed(name)
        if chosen.check:
            problems += [f"{name}: {problem}" for problem in differences(read(name), fresh)]
            continue
        nbformat.write(fresh, FOLDER / f"{name}.ipynb")
        for picture, content in images(fresh):
            if picture:
                (IMAGES / f"{picture}.png").write_bytes(content)
        print(FOLDER / f"{name}.ipynb")
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
