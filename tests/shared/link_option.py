"""The kind of links of the networks that tests make: what `--links` says, or the parameter of a test."""

from collections.abc import Iterator

import pytest

DIRECT, REVERSED, RELAYED = KINDS = ("direct", "reversed", "relayed")

# The parameter of a test that runs, with --all, over other links as well; None: over what `--links` says.
USUAL, *OTHERS = (
    pytest.param(None, id="usual"),
    *(pytest.param(kind, marks=pytest.mark.long) for kind in (REVERSED, RELAYED)),
)
over_other_links_too = pytest.mark.parametrize("kind_of_links", [USUAL, *OTHERS], indirect=True)


class Current:
    """The kind of links of networks that are made now."""

    kind = DIRECT


@pytest.fixture
def kind_of_links(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Have networks that a test makes use links of a kind."""
    import shared.kinds_of_links  # noqa: F401  (networks are made by it from now on)

    monkeypatch.setattr(Current, "kind", getattr(request, "param", None) or Current.kind)
    yield Current.kind
