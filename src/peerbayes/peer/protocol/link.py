"""One connection to a neighbour, over which both sides ask and answer: calls, their limits, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, cast

import msgspec

from peerbayes.data.files import printable
from peerbayes.errors import RefusedMessage
from peerbayes.peer.protocol.failures import AWAY, meaning
from peerbayes.peer.protocol.frames import HEADER, BadFrame, Frame, FrameReader, Kind, header
from peerbayes.peer.protocol.wire import LARGEST_REQUEST

log = logging.getLogger("peerbayes.peer")

Answer = Callable[[str, bytes], Awaitable[bytes]]  # the caller's name and its request -> the reply
Refused = Callable[[str, str, str], None]  # who sent it, the reason, and details

UNANSWERED = (
    32  # requests of one connection that are answered at once; who has more under way waits, or is refused
)
EXCESS = 64  # more requests than that, each of them refused, after which the connection is closed
REQUEST_TIMEOUT = 10.0  # seconds for the rest of a request that has begun
SILENCE = 20.0  # seconds without a byte after which the other side is asked whether it is still there
PING_TIMEOUT = 10.0  # seconds for its answer
BLOCKED = 30.0  # seconds in which the other side takes nothing of what is sent, after which it is given up
CHUNK = 256 << 10  # bytes that are written at once, and that may wait to be sent
SMALL = 1 << 10  # bytes of a frame that is neither a request nor a reply


class Greeting(msgspec.Struct):
    """What each side says first."""

    process: bytes
    """16 random bytes of its process: a peer that was started again has others."""
    serves: bool
    """Whether it answers requests on this connection."""


_greetings = msgspec.msgpack.Decoder(Greeting)


class LinkClosed(Exception):
    """Why a connection ended, as one phrase that follows the neighbour's name."""


class _Call(NamedTuple):
    reply: asyncio.Future[bytes]
    largest: int


class Link(asyncio.Protocol):
    """A connection whose other end has proved who it is. It is told so by `begin`; until then nothing is read."""

    def __init__(self, greeting: Greeting, answer: Answer | None, refused: Refused) -> None:
        self._own_greeting, self._answer, self._refused = greeting, answer, refused
        self.name = ""
        """The neighbour; "": it is not known yet."""
        self.dialled = False
        """Whether this peer opened it."""
        self.relayed = False
        self.certificate = b""
        """What the other side showed, in PEM."""
        self.greeting: asyncio.Future[Greeting] = asyncio.get_running_loop().create_future()
        """What the other side said first."""
        self.closed: asyncio.Future[LinkClosed] = asyncio.get_running_loop().create_future()
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when nothing is left of the connection."""
        self.retired = False
        """Whether nothing new is asked over it."""
        self.heard = self.began = asyncio.get_running_loop().time()
        """When its last bytes came, and when it was opened."""
        self._transport: asyncio.Transport = cast(Any, None)
        self._reader = FrameReader(self._limit)
        self._early: list[bytes] = []
        self._calls: dict[int, _Call] = {}
        self._given_up: dict[int, int] = {}  # calls whose reply may still come, and the largest it may be
        self._number = 0
        self._answers: dict[int, asyncio.Task[None]] = {}
        self._excess = 0
        self._sending = asyncio.Lock()
        self._slots = asyncio.Semaphore(UNANSWERED)
        self._writable = asyncio.Event()
        self._writable.set()
        self._later: set[asyncio.Task[None]] = set()
        self._slow: asyncio.TimerHandle | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._pinged = self._blocked = 0.0
        self._reason = ""
        self._loop = asyncio.get_running_loop()

    def begin(self, name: str, certificate: bytes) -> None:
        """Talk to the other side, now that it is known who it is."""
        self.name, self.certificate = name, certificate
        self._transport.set_write_buffer_limits(high=CHUNK)
        self._write(Kind.GREETING, 0, msgspec.msgpack.encode(self._own_greeting))
        self._tick = self._loop.call_later(1.0, self._look)
        early, self._early = b"".join(self._early), []
        if early:
            self.data_received(early)

    @property
    def usable(self) -> bool:
        """Whether requests can be sent over it."""
        return (
            bool(self.name)
            and not self.closed.done()
            and not self.retired
            and self.greeting.done()
            and not self.greeting.cancelled()
            and self.greeting.exception() is None
            and self.greeting.result().serves
        )

    @property
    def idle(self) -> bool:
        """Whether no call is under way, in either direction."""
        return not self._calls and not self._answers

    # --- asking --------------------------------------------------------------------------------------------

    async def call(self, request: bytes, largest: int) -> bytes:
        """Return the reply to a request; LinkClosed where the connection ends before it came."""
        async with self._slots:
            if self.closed.done():
                raise self.closed.result()
            self._number = number = self._number % 0xFFFF_FFFF + 1
            reply: asyncio.Future[bytes] = self._loop.create_future()
            self._calls[number] = _Call(reply, largest)
            try:
                await self._send(Kind.REQUEST, number, request)
                return await reply
            finally:
                del self._calls[number]
                if not reply.done() or reply.cancelled():
                    self._give_up(number, largest)
                else:
                    reply.exception()  # it is known: asyncio need not say that nobody looked

    def _give_up(self, number: int, largest: int) -> None:
        """Tell the other side that nobody waits for a reply, which may be on its way and is no larger for that."""
        self._given_up[number] = largest
        if len(self._given_up) > UNANSWERED:
            del self._given_up[next(iter(self._given_up))]
        self._send_later(Kind.CANCEL, number)

    # --- sending -------------------------------------------------------------------------------------------

    async def _send(self, kind: Kind, call: int, body: bytes) -> None:
        """Send a frame; a large one in pieces, and only as fast as the other side takes them."""
        if len(body) <= CHUNK and self._free:
            self._write(kind, call, body)
            return
        await self._sending.acquire()
        try:
            await self._ready()
        except BaseException:
            self._sending.release()
            raise
        # From here on whole, whoever stops waiting: what came after half a frame would be taken for its rest.
        rest = self._loop.create_task(self._send_pieces(kind, call, body))
        self._later.add(rest)
        rest.add_done_callback(self._sent_late)
        await asyncio.shield(rest)

    def _sent_late(self, task: asyncio.Task[None]) -> None:
        self._later.discard(task)
        if not task.cancelled():
            task.exception()  # why the connection ended, which is known

    async def _send_pieces(self, kind: Kind, call: int, body: bytes) -> None:
        """Send a frame in pieces, and let the next one go."""
        try:
            self._transport.write(header(kind, call, len(body)) + body[: CHUNK - HEADER.size])
            pieces = memoryview(body)
            for start in range(CHUNK - HEADER.size, len(body), CHUNK):
                await self._ready()
                self._transport.write(pieces[start : start + CHUNK])
        finally:
            self._sending.release()

    @property
    def _free(self) -> bool:
        return not self._sending.locked() and self._writable.is_set() and not self.closed.done()

    def _write(self, kind: Kind, call: int, body: bytes = b"") -> None:
        self._transport.write(header(kind, call, len(body)) + body)

    async def _ready(self) -> None:
        """Wait until more can be written; LinkClosed where nothing can any more."""
        await self._writable.wait()
        if self.closed.done():
            raise self.closed.result()

    def _send_later(self, kind: Kind, call: int, body: bytes = b"") -> None:
        """Send a small frame as soon as it is its turn; where the other side takes nothing, at most a few wait."""
        if self.closed.done():
            return
        if self._free:
            self._write(kind, call, body)
        elif len(self._later) < UNANSWERED + EXCESS:
            task = self._loop.create_task(self._sent(kind, call, body))
            self._later.add(task)
            task.add_done_callback(self._later.discard)
        else:
            self.close("takes nothing of what this peer sends")

    async def _sent(self, kind: Kind, call: int, body: bytes) -> None:
        with contextlib.suppress(LinkClosed):
            await self._send(kind, call, body)

    # --- what comes ----------------------------------------------------------------------------------------

    def _limit(self, kind: Kind, call: int) -> int:
        if kind == Kind.REQUEST:
            return LARGEST_REQUEST
        if kind == Kind.REPLY:
            waiting = self._calls.get(call)
            return self._given_up.pop(call, LARGEST_REQUEST) if waiting is None else waiting.largest
        return SMALL

    def data_received(self, data: bytes) -> None:
        if not self.name:  # the handshake has ended, and who it is will be known in a moment
            self._early.append(data)
            if sum(map(len, self._early)) > CHUNK:
                self._transport.abort()
            return
        if self.closed.done():  # what still comes counts neither for nor against the other side
            return
        self.heard, self._pinged = self._loop.time(), 0.0
        try:
            for frame in self._reader.frames(data):
                self._take(frame)
                if self.closed.done():
                    return
        except BadFrame as error:
            self._spoil(error)
            return
        self._watch_request()

    def _take(self, frame: Frame) -> None:
        kind, call, body = frame
        if not self.greeting.done() and kind not in (Kind.GREETING, Kind.GOODBYE):
            raise BadFrame("unreadable", f"a {kind.name.lower()} before the greeting")
        match kind:
            case Kind.REQUEST:
                self._requested(call, body)
            case Kind.REPLY | Kind.FAILED:
                waiting = self._calls.get(call)
                if waiting is not None and not waiting.reply.done():
                    if kind == Kind.REPLY:
                        waiting.reply.set_result(body)
                    else:
                        waiting.reply.set_exception(CallFailed(_text(body)))
            case Kind.CANCEL:
                if (task := self._answers.get(call)) is not None:
                    task.cancel()
            case Kind.PING:
                self._send_later(Kind.PONG, 0)
            case Kind.GREETING:
                self._greeted(body)
            case Kind.GOODBYE:
                self.close(f"closed the connection: {_text(body)}")

    def _greeted(self, body: bytes) -> None:
        if self.greeting.done():
            raise BadFrame("unreadable", "a second greeting")
        try:
            self.greeting.set_result(_greetings.decode(body))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadFrame("unreadable", f"not a greeting: {error}") from error

    def _requested(self, call: int, body: bytes) -> None:
        if call in self._answers or len(self._answers) >= UNANSWERED:
            self._excess += 1
            self._refused(
                self.name,
                "too many at once",
                f"{UNANSWERED} requests of one connection that wait for a reply",
            )
            if self._excess > EXCESS:
                self.goodbye("too many at once: requests beyond those that are answered")
            else:
                self._send_later(Kind.FAILED, call, b"too many at once")
            return
        task = self._loop.create_task(self._answered(call, body))
        self._answers[call] = task
        task.add_done_callback(lambda _: self._answers.pop(call, None))

    async def _answered(self, call: int, request: bytes) -> None:
        if self._answer is None:
            self._send_later(Kind.FAILED, call, b"not here: this connection only asks")
            return
        try:
            reply = await self._answer(self.name, request)
        except Exception:
            log.exception("a request could not be answered")
            self._send_later(Kind.FAILED, call, b"failed")
            return
        with contextlib.suppress(LinkClosed):
            await self._send(Kind.REPLY, call, reply)

    # --- the end, and what leads to it ---------------------------------------------------------------------

    def _spoil(self, error: BadFrame) -> None:
        """Close a connection that brought what no peer sends; whoever waits for the reply is told why."""
        waiting = self._calls.get(error.call) if error.kind == Kind.REPLY else None
        if waiting is not None and not waiting.reply.done():
            waiting.reply.set_exception(
                RefusedMessage("too large", "a message larger than what was agreed on (limits.message_bytes)")
            )
        else:
            self._refused(self.name, error.reason, str(error))
        self.goodbye(f"{error.reason}: {error}")

    def _watch_request(self) -> None:
        """Limit the time that a request may take to come, once it has begun."""
        if self._reader.under_way == Kind.REQUEST or (
            not self._reader.empty and self._reader.under_way is None
        ):
            if self._slow is None:
                self._slow = self._loop.call_later(REQUEST_TIMEOUT, self._too_slow)
        elif self._slow is not None:
            self._slow.cancel()
            self._slow = None

    def _too_slow(self) -> None:
        self._refused(
            self.name, "nothing sent", f"a request that did not come whole in {REQUEST_TIMEOUT:g} s"
        )
        self.goodbye(f"nothing sent: the rest of a request for {REQUEST_TIMEOUT:g} s")

    def _look(self) -> None:
        """See once a second whether the other side is still there, and takes what it is sent."""
        now = self._loop.time()
        self._tick = self._loop.call_later(1.0, self._look)
        if self._pinged and now - self._pinged > PING_TIMEOUT:
            self.close("no longer answers: its host, or the network in between, may be down")
        elif not self._pinged and now - self.heard > SILENCE:
            self._pinged = now
            self._send_later(Kind.PING, 0)
        elif self._blocked and now - self._blocked > BLOCKED:
            self.close("takes nothing of what this peer sends")
        elif self.retired and self.idle:
            self.goodbye("another connection took its place")

    def goodbye(self, reason: str) -> None:
        """Close it, and tell the other side why."""
        if not self.closed.done() and self._free:
            self._write(Kind.GOODBYE, 0, reason.encode()[:500])
        self.close(f"closed the connection: {reason}")

    def close(self, reason: str) -> None:
        """Close it; whoever waits for a reply is told why."""
        if self.closed.done():
            return
        self._reason = reason
        self._end()
        if self._blocked:
            self._transport.abort()
        else:
            self._transport.close()

    def _end(self) -> None:
        reason = LinkClosed(self._reason or AWAY)
        self.closed.set_result(reason)
        self._writable.set()
        for timer in (self._slow, self._tick):
            if timer is not None:
                timer.cancel()
        if not self.greeting.done():
            self.greeting.set_exception(reason)
            self.greeting.exception()
        for waiting in self._calls.values():
            if not waiting.reply.done():
                waiting.reply.set_exception(reason)
        for task in self._answers.values():
            task.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self._reason = "" if exc is None else meaning(exc)
            self._end()
        if not self.gone.done():
            self.gone.set_result(None)

    def pause_writing(self) -> None:
        self._writable.clear()
        self._blocked = self._loop.time()

    def resume_writing(self) -> None:
        self._writable.set()
        self._blocked = 0.0


class CallFailed(Exception):
    """Why the other side has no reply, in its own words."""


def _text(body: bytes) -> str:
    return printable(body.decode(errors="replace"))[:300]


__all__ = ["Answer", "CallFailed", "Greeting", "Link", "LinkClosed", "Refused"]
