"""The paper's image sets, as features."""

from __future__ import annotations

from peerbayes.datasets.expected import Expected
from peerbayes.datasets.registry import Entry, names


def _image(
    name: str, aliases: str, file: str, classes: int, subject: str, source: str, licence: str
) -> Entry:
    """Return the entry of 24,000 images as features of EfficientNet-Lite0; the paper has ResNet18's of all images."""
    return Entry(
        name=name,
        aliases=names(aliases),
        file=f"{file}.npz",
        expected=Expected(24_000, tuple(f"f{index}" for index in range(512)), "y", classes, "balanced"),
        description=f"{subject}: 24,000 images as 512 features of EfficientNet-Lite0 (the paper: all images, "
        "ResNet18). Gaps between methods compare with the paper's, errors do not.",
        source=source,
        licence=licence,
        by_hand="the features are published nowhere: take the images from the page, and keep the average-pooled stages "
        "6 and 7 of EfficientNet-Lite0 (192 + 320) of 24,000 of them, balanced, as X (float16) and y of an .npz",
    )


IMAGES = (
    _image(
        "catsvsdogs",
        "cats vs dogs, cats and dogs",
        "catsvsdogs",
        2,
        "Cats and dogs",
        "https://www.microsoft.com/en-us/download/details.aspx?id=54765",
        "not stated",
    ),
    _image(
        "yearbook",
        "yearbooks, portraits",
        "yearbook",
        2,
        "Portraits of pupils, women and men",
        "https://people.eecs.berkeley.edu/~shiry/projects/yearbooks/yearbooks.html",
        "not stated",
    ),
    _image(
        "fashion",
        "fashion mnist",
        "fashion_mnist",
        10,
        "Fashion-MNIST: articles of clothing",
        "https://github.com/zalandoresearch/fashion-mnist",
        "MIT",
    ),
    _image(
        "cifar10",
        "cifar 10, cifar",
        "cifar10",
        10,
        "CIFAR-10: objects and animals",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        "not stated",
    ),
    _image(
        "mnist",
        "handwritten digits mnist",
        "mnist",
        10,
        "MNIST: handwritten digits (the paper counts 510 features)",
        "https://yann.lecun.com/exdb/mnist",
        "not stated",
    ),
)
