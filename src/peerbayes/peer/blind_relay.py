"""A blind relay: it joins two connections and forwards bytes that it cannot read.

A peer behind a firewall waits here under the digest of its key; whoever asks for that digest gets the next connection
that the peer opens. From then on the two speak TLS with each other. The relay sees digests, addresses, sizes and times,
keeps nothing on disk, and is trusted with nothing but being there.

Every line begins with PEERBAYES/1; -> comes to the relay, <- from it:

    -> WAIT <public key>      <- SIGN <nonce>      -> SIGNED <signature>      <- OK         a peer waits
    <- CALLED <token>         <- STILL             -> STILL                                 while it waits
    -> CALL <digest>          <- OK, or NOBODY, or BUSY                                     somebody asks for it
    -> TAKE <token>           <- OK, or GONE                                                the peer takes that call
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import ipaddress
import logging
import os
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from peerbayes.errors import IdentityError, NeedsPerson
from peerbayes.peer.identity.keys import p256
from peerbayes.peer.protocol import connections
from peerbayes.peer.protocol.relaying import PURPOSE
from peerbayes.peer.protocol.routes import WORD

log = logging.getLogger("peerbayes.relay")

DIGEST = re.compile(r"[0-9a-f]{64}")
LINE = 400  # bytes of a line, at most: a public key has 124 in base64
FIRST_LINE = 10.0  # seconds for a line that is expected
TAKEN_WITHIN = 10.0  # seconds for a peer to take a call
STILL_EVERY = 20.0  # seconds between two words to a peer that waits, so that both notice a break
SILENCE = 300.0  # seconds without a byte after which a pair is ended; links say something every 20
PIECE = 64 << 10  # bytes that are held of each direction
NEW = 1000  # connections beside those that wait or are joined
OWN = 32  # descriptors of this process itself
CALLS_OF_ONE = 16  # calls of one peer that it has not taken yet


@dataclass(frozen=True)
class Limits:
    """How much a relay takes on."""

    waiting: int = 1000
    """Peers that wait."""
    pairs: int = 4000
    """Connections that are joined."""
    of_one_address: int = 200
    """Connections of one address, of any kind."""


class _Closed(Exception):
    """Why a connection is not kept, as its last line."""


class _Call(NamedTuple):
    key: str
    taken: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]


@dataclass(eq=False)
class Relay:
    """Joins connections of peers that wait with those of whoever calls them."""

    limits: Limits = Limits()
    only: frozenset[str] = frozenset()
    """Digests of the keys that may wait here; empty: any."""
    forwarded: int = 0
    """Bytes so far."""
    pairs: int = 0
    """Connections that are joined now."""
    _waiting: dict[str, asyncio.StreamWriter] = field(default_factory=dict)
    _calls: dict[str, _Call] = field(default_factory=dict)
    _of_address: Counter[str] = field(default_factory=Counter)
    _open: int = 0  # connections of any kind
    _server: asyncio.Server | None = None

    @property
    def waiting(self) -> int:
        """How many peers wait."""
        return len(self._waiting)

    @property
    def most(self) -> int:
        """How many connections it takes: those of its limits, and some that have yet to say what they want."""
        wanted = self.limits.waiting + 2 * self.limits.pairs + NEW
        return max(1, min(wanted, connections.limit() - OWN))

    async def start(self, listen: str) -> None:
        """Listen on host:port; NeedsPerson where that cannot be done."""
        host, _, port = listen.rpartition(":")
        try:
            self._server = await asyncio.start_server(self._serve, host.strip("[]"), int(port), limit=PIECE)
        except OSError as error:
            raise NeedsPerson(
                f"{listen} cannot be listened on: {error.strerror or error}; name another address with --listen"
            ) from error

    async def close(self) -> None:
        """Listen no more; connections that are joined end with the process."""
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        address = _origin(writer)
        self._of_address[address] += 1
        self._open += 1
        try:
            if self._of_address[address] > self.limits.of_one_address:
                raise _Closed("BUSY too many connections of one address")
            if self._open > self.most:
                raise _Closed("BUSY too many connections")
            verb, _, rest = (await _line(reader)).partition(" ")
            if verb == "WAIT":
                await self._wait(reader, writer, rest, address)
            elif verb == "CALL":
                await self._call(reader, writer, rest, address)
            elif verb == "TAKE":
                await self._take(reader, writer, rest)
            else:
                raise _Closed("BAD expected WAIT, CALL or TAKE")
        except _Closed as error:
            with contextlib.suppress(OSError):
                await _say(writer, str(error))
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            if self._server is not None and self._server.is_serving():
                raise
        finally:
            self._open -= 1
            self._of_address[address] -= 1
            if not self._of_address[address]:
                del self._of_address[address]
            writer.close()

    async def _wait(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, shown: str, address: str
    ) -> None:
        """Keep a peer that proved to hold its key, and tell it of calls, until its connection ends."""
        public, key = _key(shown)
        if self.only and key not in self.only:
            raise _Closed("NO this key may not wait here")
        if len(self._waiting) >= self.limits.waiting and key not in self._waiting:
            raise _Closed("BUSY too many peers wait here")
        nonce = os.urandom(32)
        await _say(writer, f"SIGN {nonce.hex()}")
        verb, _, signature = (await _line(reader)).partition(" ")
        try:
            if verb != "SIGNED":
                raise ValueError(verb)
            public.verify(
                base64.b64decode(signature, validate=True), PURPOSE + nonce, ec.ECDSA(hashes.SHA256())
            )
        except (ValueError, InvalidSignature):
            raise _Closed("NO the signature is not of this key") from None
        if (before := self._waiting.get(key)) is not None:  # it lost its connection, or was started again
            before.close()
        self._waiting[key] = writer
        log.info(f"{key[:12]} waits, from {address}; {len(self._waiting)} in all")
        try:
            await _say(writer, "OK")
            while True:
                try:
                    async with asyncio.timeout(STILL_EVERY):
                        await _line(reader, None)
                except TimeoutError:
                    await _say(writer, "STILL")
                    await _line(reader)
        finally:
            if self._waiting.get(key) is writer:
                del self._waiting[key]
                log.info(f"{key[:12]} waits no more; {len(self._waiting)} in all")

    async def _call(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: str, address: str
    ) -> None:
        """Join a caller with the connection that the peer opens for it."""
        if not DIGEST.fullmatch(key):
            raise _Closed("BAD expected the digest of a key")
        if (waiting := self._waiting.get(key)) is None:
            raise _Closed("NOBODY")
        if (
            self.pairs + len(self._calls) >= self.limits.pairs
            or sum(call.key == key for call in self._calls.values()) >= CALLS_OF_ONE
        ):
            raise _Closed("BUSY too many connections")
        token = os.urandom(16).hex()
        call = self._calls[token] = _Call(key, asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(TAKEN_WITHIN):
                await _say(waiting, f"CALLED {token}")
                other_reader, other = await call.taken
        except (TimeoutError, OSError):
            if call.taken.done() and not call.taken.cancelled():  # at the last moment
                call.taken.result()[1].close()
            raise _Closed("NOBODY") from None
        finally:
            self._calls.pop(token, None)
            call.taken.cancel()
        self.pairs += 1
        began, before = time.monotonic(), self.forwarded
        try:
            await _say(writer, "OK")
            await self._join(reader, writer, other_reader, other)
        finally:
            self.pairs -= 1
            other.close()
            log.info(
                f"{key[:12]} was called from {address}: {self.forwarded - before:,} bytes went through meanwhile, in "
                f"{time.monotonic() - began:.0f} s"
            )

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> None:
        call = self._calls.pop(token, None)  # whoever comes second finds none
        if call is None:
            raise _Closed("GONE")
        await _say(writer, "OK")
        if call.taken.done():  # the caller was given up meanwhile
            return
        call.taken.set_result((reader, writer))
        await writer.wait_closed()

    async def _join(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        other_reader: asyncio.StreamReader,
        other: asyncio.StreamWriter,
    ) -> None:
        """Forward bytes in both directions until one side ends."""
        both = [
            asyncio.create_task(self._forward(reader, other)),
            asyncio.create_task(self._forward(other_reader, writer)),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for writing in (writer, other):  # what was taken is passed on
                with contextlib.suppress(OSError, TimeoutError):
                    async with asyncio.timeout(1.0):
                        await writing.drain()
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one direction, only as fast as the other side takes it."""
        writer.transport.set_write_buffer_limits(high=PIECE)
        while True:
            async with asyncio.timeout(SILENCE):
                content = await reader.read(PIECE)
                if not content:
                    return
                self.forwarded += len(content)
                writer.write(content)
                await writer.drain()


def _origin(writer: asyncio.StreamWriter) -> str:
    """Return where a connection comes from: an address, or the network of one customer where it is IPv6."""
    host = str((writer.get_extra_info("peername") or ("?",))[0])
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        return host
    return str(address.ipv4_mapped or ipaddress.IPv6Network((address, 64), strict=False))


def _key(shown: str) -> tuple[ec.EllipticCurvePublicKey, str]:
    """Return a public key from base64, and its digest."""
    try:
        content = base64.b64decode(shown, validate=True)
        public = p256(serialization.load_der_public_key(content))
    except (ValueError, TypeError, UnsupportedAlgorithm, IdentityError):
        raise _Closed("BAD expected a public key, ECDSA on P-256") from None
    return public, hashlib.sha256(content).hexdigest()


async def _line(reader: asyncio.StreamReader, within: float | None = FIRST_LINE) -> str:
    """Return the next line, without the word that every line begins with."""
    async with asyncio.timeout(within):
        try:
            content = await reader.readuntil(b"\n")
        except asyncio.LimitOverrunError:
            raise _Closed("BAD a line that is too long") from None
    if len(content) > LINE:
        raise _Closed("BAD a line that is too long")
    line = content.decode("ascii", "replace").strip()
    word, _, rest = line.partition(" ")
    if word != WORD:
        raise _Closed("BAD this is a relay of peerbayes")
    return rest


async def _say(writer: asyncio.StreamWriter, text: str) -> None:
    writer.write(f"{WORD} {text}\n".encode())
    await writer.drain()
