"""Load gRPC so that it speaks TLS 1.3 and nothing older.

Its Python interface has no setting for the lowest version. But what it offers in TLS 1.2 is a list of cipher suites,
read from the environment when it is loaded, and the suites of TLS 1.3 are another list. With a suite of pre-shared keys
alone, of which there are none, no TLS 1.2 handshake succeeds on either side; TLS 1.3 is unaffected.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from peerbayes.peers.errors import PeerError

VARIABLE = "GRPC_SSL_CIPHER_SUITES"
NO_TLS_1_2 = "ECDHE-PSK-CHACHA20-POLY1305"


def grpc() -> Any:
    """Return the module `grpc`; refuse one that was loaded before by somebody who left TLS 1.2 on."""
    if "grpc" not in sys.modules:
        os.environ[VARIABLE] = NO_TLS_1_2
    elif os.environ.get(VARIABLE) != NO_TLS_1_2:
        raise PeerError(
            f"grpc was imported before peerbayes could turn TLS 1.2 off in it; expected TLS 1.3 alone. Call "
            f"`peerbayes.peers.tls.grpc()` before anything imports grpc, or set {VARIABLE}={NO_TLS_1_2}"
        )
    import grpc as loaded

    return loaded
