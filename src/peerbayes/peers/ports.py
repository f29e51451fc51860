"""Whether a peer can listen where its settings say."""

from __future__ import annotations

import errno
import socket


def listening_problem(listen: str) -> str | None:
    """Return why host:port cannot be listened on now, in plain words; None: it can."""
    host, _, port = listen.rpartition(":")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host.strip("[]"), int(port)))
            probe.listen(1)
    except OSError as error:
        advice = {
            errno.EADDRINUSE: "another program uses the port; stop it, or name another port with `listen` in peer.toml",
            errno.EACCES: "this user may not open that port; name one above 1023 with `listen` in peer.toml",
        }.get(error.errno or 0, "is the address one of this machine's? See `listen` in peer.toml")
        return f"{listen} cannot be listened on: {advice}"
    return None
