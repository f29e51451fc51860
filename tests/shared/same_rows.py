"""Two private networks of one owner, whose first peers learn from the same rows."""

import contextlib
from dataclasses import replace

from peerbayes.peer.loopback import Loopback
from peerbayes.peer.state.ledger import current, earlier, epsilon_of
from peerbayes.peer.state.peer_settings import Settings
from shared.private_agreements import X, Y, terms

EACH, ALLOWED = 4.0, 5.0  # ε of each network's run, and of all runs over the rows


def changed(home, **settings):
    """Change peer.toml."""
    home.settings_path.write_text(replace(home.settings(), **settings).to_toml(home.folder))


def of_rows(homes):
    """Have each of these folders say that the others have the same rows."""
    for home in homes:
        changed(home, same_rows=tuple(str(other.folder) for other in homes if other is not home))


def two_networks(folder, declared=True, **more):
    """Return two networks of two peers each. The owner's folders, first in both, read one file."""
    table = X.assign(diagnosis=Y)
    tables = [table.iloc[:300], table.iloc[300:]]
    networks = [
        Loopback.create(folder / name, replace(terms(**more), network=name), tables, ((0, 1),))
        for name in ("clinics", "registry")
    ]
    owned = [network.homes["peer-1"] for network in networks]
    changed(owned[1], data=owned[0].settings().data)
    if declared:
        of_rows(owned)
    return networks, owned


def allowed_by(home, epsilon=ALLOWED):
    """Have the owner allow so much in all on the rows of a folder."""
    changed(home, require={"epsilon": epsilon})
    assert isinstance(home.settings(), Settings)


def spent_on(home, delta=1e-5):
    """ε of all that is recorded of a folder's rows."""
    return epsilon_of([*earlier(home), *current(home)], delta)


@contextlib.contextmanager
def stopped(networks):
    """Stop all processes of networks at the end."""
    try:
        yield
    finally:
        for network in networks:
            network.stop()
