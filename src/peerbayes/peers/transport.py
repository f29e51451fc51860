"""How requests reach a neighbour: one verb, `ask`; over gRPC with mutual TLS, or in memory for tests.

A transport vouches for names: the caller's that `answer` is given, and the neighbour's that `ask` reaches. Over gRPC
both come from certificates of the network's authority; there is no plain text to fall back to.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

from peerbayes.peers.errors import IdentityError, PeerError, RefusedMessage
from peerbayes.peers.home import Peer
from peerbayes.peers.identity import fingerprint, sign, verify
from peerbayes.peers.roster import Roster
from peerbayes.peers.wire import LARGEST_REQUEST

log = logging.getLogger("peerbayes.peer")

Answer = Callable[[str, bytes], Awaitable[bytes]]  # the caller's name and its request -> the reply

METHOD = "/peerbayes.Peer/Ask"
PROOF = "/peerbayes.Peer/Prove"
PURPOSE = b"peerbayes proof\n"  # signed along, so that no other signature of a peer passes for a proof
SAID = b"peerbayes said\n"  # the same for what a peer vouches for
ROOM = 64 << 10  # bytes around the numbers of a reply

# Calls that all neighbours together may have waiting here; more are turned away by gRPC itself.
WAITING = 256
UNREAD = 8  # of one caller, begun and not yet read
PATIENCE = 10.0  # seconds for the request of a call that was begun


class Unreachable(PeerError):
    """A neighbour that cannot be reached now."""


class Transport(Protocol):
    """What a node asks of its network."""

    def follow(self, roster: Roster) -> None: ...
    def vouch(self, content: bytes) -> bytes:
        """A proof that this peer says so, for peers that hear it from others."""

    def vouched(self, name: str, content: bytes, proof: bytes) -> None:
        """Refuse what a member did not vouch for."""

    async def serve(self, answer: Answer) -> None: ...
    async def ask(self, neighbour: str, request: bytes, timeout: float) -> bytes: ...
    def sign(self, content: bytes) -> bytes: ...
    def signed(self, neighbour: str, signature: bytes, content: bytes) -> bool:
        """Whether a neighbour that was asked before signed this."""

    async def close(self) -> None: ...


@dataclass
class Hub:
    """A network in memory: peers by name, and links that are cut."""

    answers: dict[str, Answer] = field(default_factory=dict)
    cut: set[frozenset[str]] = field(default_factory=set)

    def transport(self, name: str) -> InMemory:
        return InMemory(self, name)


@dataclass
class InMemory:
    """One peer's side of a hub."""

    hub: Hub
    name: str

    def follow(self, roster: Roster) -> None:
        """Names are all it needs."""

    def vouch(self, content: bytes) -> bytes:
        return self.name.encode()

    def vouched(self, name: str, content: bytes, proof: bytes) -> None:
        if proof != name.encode():
            raise RefusedMessage("other certificate", f"{proof!r} vouches, not {name}")

    async def serve(self, answer: Answer) -> None:
        self.hub.answers[self.name] = answer

    async def ask(self, neighbour: str, request: bytes, timeout: float) -> bytes:
        if neighbour not in self.hub.answers or frozenset((self.name, neighbour)) in self.hub.cut:
            await asyncio.sleep(0)
            raise Unreachable(f"{neighbour} is not there")
        try:
            async with asyncio.timeout(timeout):
                return await self.hub.answers[neighbour](self.name, request)
        except TimeoutError as error:
            raise Unreachable(f"{neighbour} did not answer in time") from error

    def sign(self, content: bytes) -> bytes:
        return _mark(self.name, content)

    def signed(self, neighbour: str, signature: bytes, content: bytes) -> bool:
        return signature == _mark(neighbour, content)

    async def close(self) -> None:
        self.hub.answers.pop(self.name, None)


def _mark(name: str, content: bytes) -> bytes:
    """What stands for a signature in memory, where everybody is trusted."""
    return hashlib.sha256(name.encode() + b"\0" + content).digest()


class Grpc:
    """Unary calls over mutual TLS."""

    def __init__(self, peer: Peer, refused: Callable[[str, str, str], None]) -> None:
        self._identity = peer.key, peer.certificate
        self._authority = peer.authority
        self._listen = peer.settings.listen
        self._largest = peer.terms.limits.message_bytes + ROOM
        self._refused = refused
        self._server: Any = None
        self._channels: dict[str, tuple[str, Any, tuple[Any, Any]]] = {}
        self._proven: dict[str, str] = {}
        # Certificates that neighbours proved to hold the keys of, and this peer's own.
        self._shown: dict[str, bytes] = {peer.name: peer.certificate}
        self.follow(peer.roster)

    def follow(self, roster: Roster) -> None:
        """Addresses and certificates are those of this roster from now on."""
        self._addresses = {member.name: member.address for member in roster.members}
        self._certificates = {member.name: member.certificate for member in roster.members}

    def vouch(self, content: bytes) -> bytes:
        key, certificate = self._identity
        return certificate + b"\0" + sign(key, SAID + content)

    def vouched(self, name: str, content: bytes, proof: bytes) -> None:
        self._signed(name, SAID + content, proof)

    async def serve(self, answer: Answer) -> None:
        import grpc

        self._server = grpc.aio.server(
            maximum_concurrent_rpcs=WAITING,
            options=[
                ("grpc.so_reuseport", 0),  # a port in use is an error
                ("grpc.max_receive_message_length", LARGEST_REQUEST),
                ("grpc.max_send_message_length", self._largest),
                ("grpc.max_concurrent_streams", 16),
                ("grpc.max_metadata_size", 8 << 10),
            ],
        )
        self._server.add_generic_rpc_handlers((_handler(answer, self._prove, self._caller, self._refused),))
        credentials = grpc.ssl_server_credentials(
            [self._identity], root_certificates=self._authority, require_client_auth=True
        )
        try:
            bound = self._server.add_secure_port(self._listen, credentials)
        except RuntimeError as error:
            raise PeerError(
                f"{self._listen} cannot be listened on: {error}. Is another program using the port?"
            ) from error
        if not bound:
            raise PeerError(
                f"{self._listen} cannot be listened on; name another port with `listen` in peer.toml"
            )
        await self._server.start()

    async def ask(self, neighbour: str, request: bytes, timeout: float) -> bytes:
        import grpc

        ask, prove = self._calls(neighbour)
        try:
            if self._proven.get(neighbour) != self._certificates[neighbour]:
                self._check(neighbour, nonce := os.urandom(32), await prove(nonce, timeout=timeout))
            return await ask(request, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            self._proven.pop(neighbour, None)  # the next connection may be to somebody else
            raise _explained(neighbour, self._addresses[neighbour], error) from error

    def _check(self, neighbour: str, nonce: bytes, proof: bytes) -> None:
        """Whoever is asked must hold the key of the certificate in the roster: a replaced one has the same name."""
        self._signed(neighbour, PURPOSE + nonce, proof)
        self._proven[neighbour] = self._certificates[neighbour]
        self._shown[neighbour] = proof.partition(b"\0")[0]

    def _signed(self, name: str, content: bytes, proof: bytes) -> None:
        """Refuse what was not signed with the key of the certificate that the roster has for a name."""
        certificate, _, signature = proof.partition(b"\0")
        try:
            if fingerprint(certificate) != self._certificates[name]:
                raise IdentityError("not the certificate that the roster has for this name")
            verify(certificate, signature, content)
        except IdentityError as error:
            raise RefusedMessage("other certificate", str(error)) from error

    def sign(self, content: bytes) -> bytes:
        return sign(self._identity[0], content)

    def signed(self, neighbour: str, signature: bytes, content: bytes) -> bool:
        certificate = self._shown.get(neighbour)
        if certificate is None or fingerprint(certificate) != self._certificates.get(neighbour):
            return False
        try:
            verify(certificate, signature, content)
        except IdentityError:
            return False
        return True

    def _calls(self, neighbour: str) -> tuple[Any, Any]:
        """How to ask a neighbour, and how to have it prove who it is."""
        import grpc

        address = self._addresses[neighbour]
        known = self._channels.get(neighbour)
        if known is None or known[0] != address:
            key, certificate = self._identity
            channel = grpc.aio.secure_channel(
                address,
                grpc.ssl_channel_credentials(self._authority, key, certificate),
                options=[
                    ("grpc.ssl_target_name_override", neighbour),  # its certificate must bear its name
                    ("grpc.max_receive_message_length", self._largest),
                    ("grpc.max_send_message_length", LARGEST_REQUEST),
                    ("grpc.enable_retries", 0),
                    ("grpc.initial_reconnect_backoff_ms", 100),
                    ("grpc.min_reconnect_backoff_ms", 15_000),  # also how long one attempt may take
                    ("grpc.max_reconnect_backoff_ms", 2000),
                    ("grpc.keepalive_time_ms", 20_000),  # notices a host that was switched off
                    ("grpc.keepalive_timeout_ms", 10_000),
                    ("grpc.use_local_subchannel_pool", 1),
                ],
            )
            calls = channel.unary_unary(METHOD), channel.unary_unary(PROOF)
            known = self._channels[neighbour] = address, channel, calls
        if known[1].get_state() != grpc.ChannelConnectivity.READY:
            self._proven.pop(neighbour, None)  # gRPC connects again by itself, perhaps to somebody else
        return known[2]

    def _prove(self, nonce: bytes) -> bytes:
        key, certificate = self._identity
        return certificate + b"\0" + sign(key, PURPOSE + nonce)

    def _caller(self, names: list[bytes], certificates: list[bytes]) -> str | None:
        """Whose certificate this is, if it is the one in the roster; who is not in it yet may come with a newer one."""
        if len(names) != 1 or len(certificates) != 1:
            return None
        name = names[0].decode(errors="replace")
        if self._certificates.get(name) not in (None, _fingerprint(certificates[0])):
            self._refused(name, "other certificate", "not the certificate that the roster has for this name")
            return None
        return name

    async def close(self) -> None:
        for _, channel, _ in self._channels.values():
            await channel.close()
        self._channels.clear()
        server, self._server = self._server, None
        if server is not None:
            await server.stop(1.0)


@lru_cache(maxsize=256)
def _fingerprint(certificate: bytes) -> str:
    return fingerprint(certificate)


def _handler(
    answer: Answer,
    proof: Callable[[bytes], bytes],
    caller: Callable[[list[bytes], list[bytes]], str | None],
    refused: Callable[[str, str, str], None],
) -> Any:
    """One unary method. The request is read here, so that a caller is known, and counted, before it has sent it."""
    import grpc

    reading: Counter[str] = Counter()

    async def reply(_: Any, context: Any) -> bytes:
        name, request = await read(context)
        try:
            return await answer(name, request)
        except Exception:
            log.exception("a request could not be answered")
            await context.abort(grpc.StatusCode.INTERNAL, "the request could not be answered")
            raise

    async def prove(_: Any, context: Any) -> bytes:
        name, nonce = await read(context)
        if len(nonce) != 32:
            refused(name, "unreadable", f"{len(nonce)} bytes to sign instead of 32")
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "32 bytes are needed")
        return proof(nonce)

    async def read(context: Any) -> tuple[str, bytes]:
        """Who calls, and what it sent."""
        known = context.auth_context()
        name = caller(known.get("x509_common_name", []), known.get("x509_pem_cert", []))
        if name is None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "not the certificate in the roster")
            raise AssertionError  # abort raises
        if reading[name] >= UNREAD:
            refused(name, "too many at once", f"{UNREAD} calls that were begun and bring nothing")
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls at once")
        reading[name] += 1
        try:
            async with asyncio.timeout(PATIENCE):
                request = await context.read()
        except TimeoutError:
            refused(name, "nothing sent", f"a call that brought no request in {PATIENCE:.0f} s")
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no request came")
            raise AssertionError from None
        finally:
            reading[name] -= 1
        if request is grpc.aio.EOF:
            refused(name, "too large", f"a request above {LARGEST_REQUEST:,} bytes, or none")
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the request is larger than max")
        return name, request

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            method = {METHOD: reply, PROOF: prove}.get(details.method)
            return None if method is None else grpc.stream_unary_rpc_method_handler(method)

    return Handler()


# What gRPC says of a failed call, and what it means.
FAILURES = (
    ("Hostname Verification", "has another peer's certificate: is the address right?"),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "has a certificate of another authority, or one that has expired: are the clocks right?",
    ),
    ("Connection refused", "refuses connections: it is not running, or its port is another"),
    ("No route", "cannot be reached: no route to its host"),
    ("DNS resolution failed", "has an address that cannot be resolved"),
    ("Domain name not found", "has an address that cannot be resolved"),
    ("Socket closed", "closed the connection: it may not trust this certificate, or is going down"),
    ("Connection reset", "closed the connection: it may not trust this certificate, or is going down"),
)


def _explained(neighbour: str, address: str, error: Any) -> PeerError:
    import grpc

    details = (str(error.details()).splitlines() or [""])[0]
    if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
        return RefusedMessage("too large", details)
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        return Unreachable(f"{neighbour} at {address} did not answer in time")
    for mark, meaning in FAILURES:
        if mark in details:
            return Unreachable(f"{neighbour} at {address} {meaning}")
    return Unreachable(f"{neighbour} at {address}: {error.code().name.lower()}, {details:.200}")
