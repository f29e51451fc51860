"""gRPC over mutual TLS: one server and a channel to every neighbour."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from peerbayes.errors import IdentityError, NeedsPerson, RefusedMessage
from peerbayes.peer.identity.keys import fingerprint, signing, verify, verifying
from peerbayes.peer.identity.roster import Roster
from peerbayes.peer.protocol import calls as proofs
from peerbayes.peer.protocol import connections
from peerbayes.peer.protocol.calls import Barred, Caller, Ends, Unreachable, explained
from peerbayes.peer.protocol.wire import LARGEST_REQUEST
from peerbayes.peer.state.folder import Peer

# --- whether a peer can listen where its settings say


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


# --- how requests reach a neighbour: one verb, `ask`, over gRPC with mutual TLS; tests have a twin in memory
# A transport vouches for names: the caller's that `answer` is given, and the neighbour's that `ask` reaches. Over
# gRPC both come from certificates of the network's authority; there is no plain text to fall back to.

__all__ = ["Answer", "Barred", "Grpc", "Transport", "Unreachable"]

log = logging.getLogger("peerbayes.peer")

Answer = Callable[[str, bytes], Awaitable[bytes]]  # the caller's name and its request -> the reply

SERVICE = "peerbayes.Peer"
METHOD, PROOF = f"/{SERVICE}/Ask", f"/{SERVICE}/Prove"
UNREAD = 8  # calls of one caller, begun and not yet read
REQUEST_TIMEOUT = 10.0  # seconds for the request of a call that was begun

SAID = b"peerbayes said\n"  # prefix of what is signed: no other signature of a peer passes for a voucher
ROOM = 64 << 10  # bytes of a reply beside its numbers

# Waiting calls of all neighbours together; gRPC itself rejects more.
WAITING = 256
GUARD = 0.5  # seconds between two checks of the server
HANDSHAKE = 10.0  # seconds for TLS and the first frame of a connection, after which it is cut off


class Transport(Protocol):
    """What a peer needs of its network."""

    def follow(self, roster: Roster) -> None: ...
    def vouch(self, content: bytes) -> bytes:
        """Return a proof that this peer vouches for content, for peers that receive it through others."""

    def vouched(self, name: str, content: bytes, proof: bytes) -> None:
        """Refuse content that a member did not vouch for."""

    async def serve(self, answer: Answer) -> None: ...
    async def ask(self, neighbour: str, request: bytes, timeout: float) -> bytes: ...
    def sign(self, content: bytes) -> bytes: ...
    def signed(self, neighbour: str, signature: bytes, content: bytes) -> bool:
        """Return whether a neighbour that was asked before signed this content."""

    async def close(self) -> None: ...


class Shown(NamedTuple):
    """A certificate whose key a neighbour proved to hold."""

    fingerprint: str
    refuse: Callable[[bytes, bytes], None]
    """Refuses a signature of content that was not made with that key."""


class Grpc:
    """Unary calls over mutual TLS 1.3."""

    def __init__(self, peer: Peer, refused: Callable[[str, str, str], None]) -> None:
        connections.grpc()  # before anything else can load it with other settings
        self._name, self._network = peer.name, peer.terms.network
        self._identity = peer.key, peer.certificate
        self._fingerprint, self._sign = fingerprint(peer.certificate), signing(peer.key)
        self._authority = peer.authority
        self._listen = peer.settings.listen
        self._largest = peer.terms.limits.message_bytes + ROOM
        self.refused = refused
        self._server: Any = None
        self._channels: dict[str, tuple[str, Any, tuple[Any, Any]]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._proven: dict[str, str] = {}
        # Certificates whose keys neighbours proved to hold, and this peer's own.
        self._shown: dict[str, Shown] = {
            peer.name: Shown(fingerprint(peer.certificate), verifying(peer.certificate))
        }
        self.follow(peer.roster)

    def follow(self, roster: Roster) -> None:
        """Use the addresses, certificates and revocations of this roster from now on."""
        self._run, self._revoked = roster.run, frozenset(roster.revoked)
        self._addresses = {member.name: member.address for member in roster.members}
        self._certificates = {member.name: member.certificate for member in roster.members}

    def renew(self, certificate: bytes) -> None:
        """Show this certificate from the next connection on."""

    def vouch(self, content: bytes) -> bytes:
        return self._proof(SAID + content)

    def _proof(self, content: bytes) -> bytes:
        """Return this peer's certificate, and its signature of content."""
        return self._identity[1] + b"\0" + self._sign(content)

    def vouched(self, name: str, content: bytes, proof: bytes) -> None:
        self._signed(name, SAID + content, proof)

    async def serve(self, answer: Answer) -> None:
        grpc = connections.grpc()
        self._answer = answer
        self._server = grpc.aio.server(
            maximum_concurrent_rpcs=WAITING,
            options=[
                ("grpc.so_reuseport", 0),  # a port in use is an error
                ("grpc.max_receive_message_length", LARGEST_REQUEST),
                ("grpc.max_send_message_length", self._largest),
                ("grpc.max_concurrent_streams", 16),
                ("grpc.max_metadata_size", 8 << 10),
                # Of connections in all, with or without a certificate; more are closed at once.
                ("grpc.max_allowed_incoming_connections", connections.connections(connections.limit())),
                ("grpc.server_handshake_timeout_ms", round(1000 * HANDSHAKE)),
            ],
        )
        self._reading: Counter[str] = Counter()
        handlers = {
            "Ask": grpc.stream_unary_rpc_method_handler(self._answer_call),
            "Prove": grpc.stream_unary_rpc_method_handler(self._prove_call),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        credentials = grpc.ssl_server_credentials(
            [self._identity], root_certificates=self._authority, require_client_auth=True
        )
        try:
            bound = self._server.add_secure_port(self._listen, credentials)
        except RuntimeError as error:  # gRPC does not say why
            log.debug(f"listening on {self._listen} failed: {error}")
            bound = 0
        if not bound:
            raise NeedsPerson(
                listening_problem(self._listen)
                or f"{self._listen} cannot be listened on; name another port with `listen` in peer.toml"
            )
        await self._server.start()

    async def guard(self) -> None:
        """Restart the server if it has ended by itself: gRPC logs why, and would answer nobody any more."""
        while True:
            await asyncio.sleep(GUARD)
            server = self._server
            if server is None or await _lasts(server) or server is not self._server:
                continue
            log.warning("the server for neighbours has ended and is started again")
            await self.serve(self._answer)

    async def ask(self, neighbour: str, request: bytes, timeout: float) -> bytes:
        grpc, (ask, prove) = connections.grpc(), self._calls(neighbour)
        nonce = os.urandom(proofs.NONCE)
        try:
            if self._proven.get(neighbour) != self._certificates[neighbour]:
                first, run = os.urandom(proofs.NONCE), self._run
                proof = await prove(proofs.proof_request(run, first), timeout=timeout)
                self._check(neighbour, run, first, proof)
            call = ask(request, timeout=timeout, metadata=((proofs.NONCE_KEY, nonce),))
            reply = await call
            signature = _metadata(await call.trailing_metadata(), proofs.SIGNATURE_KEY)
        except grpc.aio.AioRpcError as error:
            self._proven.pop(neighbour, None)  # the next connection may be to somebody else
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                self._hang_up(neighbour, ask)
            raise explained(neighbour, self._addresses[neighbour], error) from error
        digests = await proofs.digest(request), await proofs.digest(reply)
        if not self.signed(neighbour, signature, self._ends_to(neighbour).reply(nonce, *digests)):
            self._proven.pop(neighbour, None)
            raise RefusedMessage(
                "wrong signature", f"a reply that is not signed by {neighbour} for this peer"
            )
        return reply

    def _ends_to(self, neighbour: str) -> Ends:
        """Return the ends of a call from this peer to a neighbour."""
        return Ends(
            self._network, self._name, self._fingerprint, neighbour, self._certificates.get(neighbour, "")
        )

    def _answered(self, caller: Caller) -> Ends:
        """Return the ends of a call to this peer."""
        return Ends(self._network, caller.name, caller.certificate, self._name, self._fingerprint)

    def _check(self, neighbour: str, run: str, nonce: bytes, proof: bytes) -> None:
        """Verify that a neighbour holds the key of its certificate in the roster: a replaced one has the same name."""
        self._signed(neighbour, self._ends_to(neighbour).proof(run, nonce), proof)
        self._proven[neighbour] = self._certificates[neighbour]
        certificate = proof.partition(b"\0")[0]
        self._shown[neighbour] = Shown(fingerprint(certificate), verifying(certificate))

    def _signed(self, name: str, content: bytes, proof: bytes) -> None:
        """Refuse content that was not signed with the key of a member's certificate in the roster."""
        certificate, _, signature = proof.partition(b"\0")
        try:
            if fingerprint(certificate) != self._certificates[name]:
                raise IdentityError("not the certificate that the roster has for this name")
            verify(certificate, signature, content)
        except IdentityError as error:
            raise RefusedMessage("other certificate", str(error)) from error

    def sign(self, content: bytes) -> bytes:
        return self._sign(content)

    def signed(self, neighbour: str, signature: bytes, content: bytes) -> bool:
        shown = self._shown.get(neighbour)
        if shown is None or shown.fingerprint != self._certificates.get(neighbour):
            return False
        try:
            shown.refuse(signature, content)
        except IdentityError:
            return False
        return True

    def _calls(self, neighbour: str) -> tuple[Any, Any]:
        """Return the two calls to a neighbour: to ask it, and to have it prove its identity."""
        grpc = connections.grpc()
        address = self._addresses[neighbour]
        entry = self._channels.get(neighbour)
        if entry is None or entry[0] != address:
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
            entry = self._channels[neighbour] = address, channel, calls
        if entry[1].get_state() != grpc.ChannelConnectivity.READY:
            self._proven.pop(neighbour, None)  # gRPC connects again by itself, perhaps to somebody else
        return entry[2]

    def _hang_up(self, neighbour: str, ask: Any) -> None:
        """Close the connection of a call that failed: after a break TCP sends again ever later, a new one at once."""
        entry = self._channels.get(neighbour)
        if entry is not None and entry[2][0] is ask:
            del self._channels[neighbour]
            closing = asyncio.create_task(entry[1].close(HANDSHAKE))  # once no other call is under way
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    # --- incoming calls --------------------------------------------------------------------------------
    # Requests are read here, as a stream of one message, to count callers before they send anything.

    async def _answer_call(self, _: Any, context: Any) -> bytes:
        caller, request = await self._read(context)
        try:
            content = await self._answer(caller.name, request)
        except Exception:
            log.exception("a request could not be answered")
            await context.abort(connections.grpc().StatusCode.INTERNAL, "the request could not be answered")
            raise
        nonce = _metadata(context.invocation_metadata(), proofs.NONCE_KEY)
        signature = await self.sign_reply(caller, nonce, request, content)
        context.set_trailing_metadata(((proofs.SIGNATURE_KEY, signature),))
        return content

    async def _prove_call(self, _: Any, context: Any) -> bytes:
        caller, content = await self._read(context)
        try:
            return self.prove(caller, content)
        except RefusedMessage as error:
            self.refused(caller.name, error.reason, str(error))
            codes = connections.grpc().StatusCode
            code = codes.PERMISSION_DENIED if error.reason == "revoked" else codes.INVALID_ARGUMENT
            await context.abort(code, f"{error.reason}: {error}")
            raise

    async def _read(self, context: Any) -> tuple[Caller, bytes]:
        """Return the caller and its request."""
        grpc, identity = connections.grpc(), context.auth_context()
        caller = self.caller(identity.get("x509_common_name", []), identity.get("x509_pem_cert", []))
        if caller is None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "not the certificate in the roster")
            raise AssertionError  # abort raises
        name = caller.name
        if self._reading[name] >= UNREAD:
            self.refused(name, "too many at once", f"{UNREAD} calls that were begun without a request")
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls at once")
        self._reading[name] += 1
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                request = await context.read()
        except TimeoutError:
            self.refused(name, "nothing sent", f"a call without a request for {REQUEST_TIMEOUT:.0f} s")
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no request came")
            raise AssertionError from None
        finally:
            self._reading[name] -= 1
        if request is grpc.aio.EOF:
            self.refused(name, "too large", f"a request above {LARGEST_REQUEST:,} bytes, or none")
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the request is larger than max")
        return caller, request

    def prove(self, caller: Caller, content: bytes) -> bytes:
        """Return a proof that this peer holds its key, for this caller; a revoked one gets none."""
        if caller.name in self._revoked:
            raise RefusedMessage("revoked", f"{caller.name} is no longer a member")
        return self._proof(self._answered(caller).proof(*proofs.proof_asked(content)))

    async def sign_reply(self, caller: Caller, nonce: bytes, request: bytes, reply: bytes) -> bytes:
        """Return this peer's signature of a reply, good for the one request that it answers."""
        digests = await proofs.digest(request), await proofs.digest(reply)
        return self._sign(self._answered(caller).reply(nonce, *digests))

    def caller(self, names: list[bytes], certificates: list[bytes]) -> Caller | None:
        """Return the owner of a certificate, unless the roster has another; a new member may bring a newer roster."""
        if len(names) != 1 or len(certificates) != 1:
            return None
        name, shown = names[0].decode(errors="replace"), _fingerprint(certificates[0])
        if self._certificates.get(name) not in (None, shown):
            self.refused(name, "other certificate", "not the certificate that the roster has for this name")
            return None
        return Caller(name, shown)

    async def close(self) -> None:
        for _, channel, _ in self._channels.values():
            await channel.close()
        self._channels.clear()
        for closing in list(self._closing):
            closing.cancel()
        server, self._server = self._server, None
        if server is not None:
            await server.stop(1.0)


def _metadata(metadata: Any, key: str) -> bytes:
    """Return the metadata of a message under a key; b"" where there is none."""
    value = next((value for name, value in metadata or () if name == key), b"")
    return value if isinstance(value, bytes) else b""


async def _lasts(server: Any) -> bool:
    """Return whether a server still runs a moment from now."""
    try:
        return bool(await server.wait_for_termination(GUARD))
    except Exception:  # why it ended, which gRPC has logged
        return False


@lru_cache(maxsize=256)
def _fingerprint(certificate: bytes) -> str:
    return fingerprint(certificate)
