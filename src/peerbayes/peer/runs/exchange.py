"""What sites tell each other beside their runs: rosters of the authority, and documents of runs.

Each site asks its neighbours which documents they have and fetches those that it lacks, so nobody can send what was not
asked for. A listing is the digests of the documents that came since the last one; a reply waits until there are any.
Whatever comes is verified before it is stored, and passed on to others only then.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from peerbayes.errors import IdentityError, RefusedMessage
from peerbayes.peer import tasks
from peerbayes.peer.agreement.column_facts import canonical
from peerbayes.peer.identity.roster import DIGEST
from peerbayes.peer.identity.roster import LARGEST as LARGEST_ROSTER
from peerbayes.peer.protocol import wire
from peerbayes.peer.protocol.renewals import Renewals
from peerbayes.peer.protocol.roster_pieces import LARGEST_OFFERED, PIECE, piece_of
from peerbayes.peer.protocol.server import AT_ONCE, Callbacks
from peerbayes.peer.protocol.session import Session
from peerbayes.peer.protocol.transport import Unreachable
from peerbayes.peer.protocol.wire import Reply, Request
from peerbayes.peer.runs.book import MOST_SHARED, NotYet, RosterNeeded, Runs
from peerbayes.peer.runs.documents import LARGEST, kind_of
from peerbayes.peer.runs.listing import Listing, Progress
from peerbayes.peer.state.links_file import publish_links
from peerbayes.peer.tasks import BackgroundTasks, Rate

LIST = "list"
ASKED_AT_ONCE, ASKED_EVERY = 400, 0.02  # requests for documents of one caller, and seconds between two more
ROSTERS_AT_ONCE, ROSTERS_EVERY = 8, 2.0  # the same for rosters that a caller brings, which are verified
STRIKES = 8  # wrongs of one neighbour, and one more each `BARRED`, after which it is not asked for a while
BARRED = 60.0  # seconds of that while
LISTS_AT_ONCE, LISTS_EVERY = 100, 0.1  # listings of one neighbour that are read, and seconds between two more
MISSES = 64  # documents of one listing that a neighbour may turn out not to have: others have come since
MOST_REFUSED = 1000  # invalid documents of a neighbour that are remembered
LOOK = 0.5  # seconds at least between two looks at the files of documents, however many come
AGAIN = 2.0  # seconds until documents that could not be judged yet are asked for again


def membership_of(network: str) -> str:
    """Return the identity of what belongs to no run: 64 digits, as runs have."""
    return hashlib.sha256(canonical(["peerbayes membership", network])).hexdigest()


@dataclass(eq=False)
class Exchange:
    """Keeps the rosters and documents of a site and its neighbours the same."""

    session: Session
    runs: Runs
    adopt: Callable[[bytes], Awaitable[None]]
    """Adopts a newer roster of the authority; RefusedMessage where it is none."""
    waits: Callable[[str], bool] = lambda run: False
    """Whether a run is known here that has not begun, or has just begun."""
    renewals: Renewals | None = None
    """Renews certificates, or passes on who asks for it; None: not here."""
    _tasks: BackgroundTasks = field(default_factory=BackgroundTasks)

    def __post_init__(self) -> None:
        self.identity = membership_of(self.session.roster.network)
        self._callbacks = Callbacks(self.session)
        self._busy: Counter[str] = Counter()
        self._asked = Rate(ASKED_AT_ONCE, ASKED_EVERY)
        self._rosters = Rate(ROSTERS_AT_ONCE, ROSTERS_EVERY)
        self._strikes, self._lists = Rate(STRIKES, BARRED), Rate(LISTS_AT_ONCE, LISTS_EVERY)
        self._paces = Rate(ASKED_AT_ONCE // 2, 1.5 * ASKED_EVERY)  # below what a neighbour allows
        self._progress: dict[str, Progress] = {}
        self._listing, self._looked = Listing(), -LOOK
        self._stamp: tuple[int, ...] | None = None
        self._added: set[str] = set()  # documents that have come since the last look at the files
        self._adding, self._looking = asyncio.Lock(), asyncio.Lock()

    def start(self) -> None:
        """Start a task for every neighbour that has none yet, and the list of this site's links."""
        session = self.session
        neighbours = lambda: session.roster.neighbours(session.name)  # noqa: E731
        self._tasks.add(
            "the list of links",
            lambda: publish_links(self.runs.home, neighbours, session.transport.kind_of),
        )
        for name in self.session.roster.present(self.session.name):
            self._tasks.add(f"the exchange with {name}", partial(self._forever, name))

    async def stop(self) -> None:
        await self._tasks.stop()

    # --- what neighbours are asked for ---------------------------------------------------------------------

    async def _forever(self, neighbour: str) -> None:
        session, pause = self.session, tasks.FIRST_PAUSE
        while neighbour in session.roster.present(session.name):
            state = session.neighbour(neighbour)
            try:
                await self._rosters_with(neighbour)
                common = None if state.versions is None else session.versions.common(state.versions)
                if (common or 0) < wire.DOCUMENTS:
                    state.versions = None  # it may be updated, or become a site
                    await asyncio.sleep(tasks.LONGEST_PAUSE)
                    continue
                await self._list(neighbour)
                if not await self._fetch(neighbour):
                    await asyncio.sleep(AGAIN)
                session.note(neighbour, "")
                pause = tasks.FIRST_PAUSE
            except Unreachable as error:
                session.note(neighbour, str(error), lost=True)
            except RefusedMessage as error:
                session.refuse(neighbour, error)
                if error.reason == "other version":
                    state.versions = None
                if not self._strikes.allows(neighbour):
                    session.note(neighbour, f"not asked for {BARRED:.0f} s: {error}"[:300])
                    await asyncio.sleep(BARRED)
            else:
                continue
            await session.changes.wait(pause)
            pause = min(2 * pause, tasks.LONGEST_PAUSE)

    async def _ask(self, neighbour: str, kind: wire.Kind, wait: float = 0.0, **fields: Any) -> Reply:
        """Return a neighbour's reply, once its roster's version is noted."""
        request = self.session.request(neighbour, kind, wait=wait, **fields)
        request = msgspec.structs.replace(request, run=self.identity)
        reply = await self.session.ask(neighbour, request, wait + tasks.GRACE)
        self.session.in_touch(neighbour, reply).roster = reply.roster
        return reply

    async def _rosters_with(self, neighbour: str) -> None:
        """Bring both to the newer of their two rosters."""
        state, session = self.session.neighbour(neighbour), self.session
        if state.versions is None or state.roster < 0:
            _refuse_refusal(await self._ask(neighbour, "hello"))
        if state.roster > max(session.roster.version, state.tried):
            state.tried = state.roster
            signed = await self._pieces(neighbour, "roster", "", LARGEST_ROSTER)
            if signed is not None:
                await self.adopt(signed)
        elif state.roster < session.roster.version and state.offered < session.roster.version:
            state.offered = session.roster.version
            if len(session.signed) <= LARGEST_OFFERED:  # a neighbour asks for a larger one by itself
                _refuse_refusal(await self._ask(neighbour, "roster", body=session.signed))

    async def _list(self, neighbour: str) -> None:
        """Ask a neighbour which documents it has that it has not listed yet; wait for some if none is missing."""
        progress = self._progress.setdefault(neighbour, Progress())
        progress.ask_again(self.session.roster.version)
        wait = 0.0 if progress.missing else tasks.WAIT
        reply = await self._ask(
            neighbour, "documents", wait, phase=LIST, round_index=progress.number, body=progress.token
        )
        _refuse_refusal(reply)
        if reply.status == "gone":
            await asyncio.sleep(tasks.LONGEST_PAUSE)  # a process without other runs
        if not self._lists.allows(neighbour):  # it answers at once that there is nothing, or nothing new
            raise RefusedMessage("too many listings", f"{neighbour} sends more than {LISTS_AT_ONCE} at once")
        if reply.status != "ok":
            return
        progress.read(reply.body, MOST_SHARED)

    async def _pieces(self, neighbour: str, kind: wire.Kind, phase: str, most: int) -> bytes | None:
        """Return what a neighbour has under a name, piece by piece; None: it has nothing."""
        content, size = b"", None
        while size is None or len(content) < size:
            while kind == "documents" and not self._paces.allows(neighbour):
                await asyncio.sleep(ASKED_EVERY)
            reply = await self._ask(neighbour, kind, phase=phase, round_index=len(content))
            _refuse_refusal(reply)
            if reply.status != "ok":
                return None
            total = reply.shape[0] if len(reply.shape) == 1 else -1
            if not len(content) + len(reply.body) <= total <= most or size not in (None, total):
                raise RefusedMessage(
                    "wrong shape", f"a piece of {len(reply.body)} bytes of {total}; at most {most}"
                )
            if not reply.body and total:
                raise RefusedMessage("wrong message", "an empty piece")
            content, size = content + reply.body, total
        return content

    async def _fetch(self, neighbour: str) -> bool:
        """Fetch the documents that a neighbour has listed and this site lacks; return whether all could be judged."""
        await self._look()
        progress, missed, later = self._progress[neighbour], 0, dict[str, None]()
        try:
            while progress.missing:
                digest = next(iter(progress.missing))
                if digest not in self._listing.paths and digest not in self._added:
                    document = await self._pieces(neighbour, "documents", digest, LARGEST)
                    if document is None:
                        missed += 1
                    else:
                        await self._add(neighbour, digest, document, later)
                del progress.missing[digest]
                if missed > MISSES:
                    raise RefusedMessage(
                        "wrong message", f"{neighbour} lists documents that it does not have"
                    )
        finally:
            progress.missing |= later
        return not later

    async def _add(self, neighbour: str, digest: str, document: bytes, later: dict[str, None]) -> None:
        """Verify and store one document, or have it asked for again later; refuse an invalid one."""
        progress, version = self._progress[neighbour], self.session.roster.version
        try:
            await self._stored(neighbour, digest, document)
        except NotYet:
            later[digest] = None
        except IdentityError as error:
            del progress.missing[digest]
            progress.refused[digest] = version
            if len(progress.refused) > MOST_REFUSED:
                del progress.refused[next(iter(progress.refused))]
            raise RefusedMessage("bad document", str(error)) from error

    async def _stored(self, neighbour: str, digest: str, document: bytes) -> None:
        """Verify and store one document; a roster that it names is fetched first."""
        claimed = kind_of(document).unverified(document).digest
        if claimed != digest:
            raise IdentityError(f"document {claimed:.8} came instead of {digest:.8}")
        async with self._adding:
            try:
                added = await asyncio.to_thread(self.runs.add, document)
            except RosterNeeded as needed:
                signed = await self._pieces(neighbour, "documents", needed.digest, LARGEST_ROSTER)
                if signed is None:
                    raise NotYet(str(needed)) from needed
                await asyncio.to_thread(self.runs.keep_named_roster, signed, needed.digest)
                added = await asyncio.to_thread(self.runs.add, document)
        self._added.add(digest)
        if added is not None:
            self.session.emit("document", noun=added.NOUN, who=added.member, number=added.number)
            self.session.changes.notify()

    # --- what others ask for --------------------------------------------------------------------------------

    async def answer(self, caller: str, content: bytes) -> bytes:
        """Return the reply to a request that belongs to no run that goes on here, whatever its bytes are."""
        request, session = None, self.session
        try:
            request = wire.request_in(content, session.versions, caller, session.name)
            self._admit(caller, request)
            session.asked_by = time.time()
            self._busy[caller] += 1
            try:
                reply = await self._reply(caller, request)
            finally:
                self._busy[caller] -= 1
        except RefusedMessage as error:
            session.refuse(caller, error)
            reply = self._replied(request, "refused", reason=f"{error.reason}: {error}"[:500])
        return wire.encode(reply)

    def _replied(self, request: Request | None, status: wire.Status, **fields: Any) -> Reply:
        session, kind = self.session, request.kind if request is not None else "hello"
        if request is not None:
            fields = {"phase": request.phase, "round_index": request.round_index} | fields
        return Reply(
            **session.reply_version(request), run=self.identity if request is None else request.run,
            sender=session.name, kind=kind, status=status, roster=session.roster.version,
            roster_digest=session.roster.digest, clock=time.time(), **fields,
        )  # fmt: skip

    def _admit(self, caller: str, request: Request) -> None:
        if request.sender != caller:
            raise RefusedMessage("speaks for another", f"{caller} asks in the name of {request.sender!r}")
        asks_why = request.kind == "hello" or (request.kind == "roster" and not request.body)
        if (
            caller in self.session.roster.revoked and not asks_why
        ):  # the roster tells it, signed, so that it ends
            raise RefusedMessage("revoked", f"{caller} is no longer a member")
        if self._busy[caller] >= AT_ONCE:
            raise RefusedMessage("too many at once", f"{caller} has {AT_ONCE} requests waiting here")

    async def _reply(self, caller: str, request: Request) -> Reply:
        session, kind = self.session, request.kind
        is_neighbour = session.roster.has(caller) and caller in session.roster.present(session.name)
        if is_neighbour:
            state = session.in_touch(caller, request)
            state.roster = max(state.roster, request.roster)
        if kind == "roster" and request.body:
            if request.body != session.signed:
                if not self._rosters.allows(caller):
                    raise RefusedMessage(
                        "too many rosters", f"{caller} sent more than {ROSTERS_AT_ONCE} at once"
                    )
                await self.adopt(request.body)
            return self._replied(request, "ok")
        if kind == "roster":
            return self._piece(request, session.signed, request.phase in ("", session.roster.digest.hex()))
        if kind == "call back":
            return self._replied(request, "ok", reason=await self._callbacks.tried(caller))
        if kind in ("hello", "leave"):
            return self._replied(request, "ok")
        if not is_neighbour:
            raise RefusedMessage("not a neighbour", f"{caller} has no link to {session.name}")
        if kind == "documents":
            return await self._documents(caller, request)
        if kind == "renew":
            return await self._renewed(caller, request)
        if not self.waits(request.run):
            raise RefusedMessage("wrong network", f"run {request.run:.12} does not go on here")
        await session.changes.wait(min(request.wait, tasks.WAIT))
        return self._replied(request, "not yet")

    async def _renewed(self, caller: str, request: Request) -> Reply:
        """Return a renewed certificate to a neighbour that asks for its own, or passes a request on."""
        body = None
        if self.renewals is not None:
            body = await self.renewals.answer(caller, request.phase, request.body, request.round_index)
        if body is None:
            return self._replied(request, "not yet")
        return self._replied(request, "ok", body=body, digest=wire.digest_of(body))

    async def _documents(self, caller: str, request: Request) -> Reply:
        if not self._asked.allows(caller):
            raise RefusedMessage(
                "too many documents", f"{caller} asked for more than {ASKED_AT_ONCE} at once"
            )
        if request.phase == LIST:
            until = time.monotonic() + min(request.wait, tasks.WAIT)
            while True:
                since = self.session.changes.next
                await self._look()
                body = self._listing.after(request.body, request.round_index)
                if body:
                    return self._replied(request, "ok", body=body, digest=wire.digest_of(body))
                if (left := until - time.monotonic()) <= 0:
                    return self._replied(request, "not yet")
                await self.session.changes.wait(left, since)
        path = None
        if DIGEST.fullmatch(request.phase):
            path = self._listing.paths.get(request.phase) or self.runs.roster_file(request.phase)
        if path is None:
            return self._replied(request, "gone")
        return self._piece(request, await asyncio.to_thread(path.read_bytes), True)

    async def _look(self) -> None:
        """Take into the listing what has come into the folder, whoever put it there."""
        async with self._looking:
            if await asyncio.to_thread(self.runs.stamp) == self._stamp:
                return
            await asyncio.sleep(max(0.0, self._looked + LOOK - time.monotonic()))
            added = set(self._added)
            stamp = await asyncio.to_thread(self.runs.stamp)
            self._listing.update(await asyncio.to_thread(self.runs.shared))
            self._stamp, self._looked = stamp, time.monotonic()
            self._added -= added

    def _piece(self, request: Request, content: bytes, current: bool) -> Reply:
        """Return a piece of some content from the byte that was asked for; "gone" where there is none."""
        if not current or request.round_index > max(0, len(content) - 1):
            return self._replied(request, "gone")
        piece = piece_of(content, request.round_index)
        assert len(piece) <= PIECE
        return self._replied(
            request, "ok", shape=(len(content),), body=piece, digest=wire.digest_of(piece) if piece else b""
        )


def _refuse_refusal(reply: Reply) -> None:
    """Report a neighbour's refusal as an error."""
    if reply.status == "refused":
        raise RefusedMessage("it refuses", reply.reason[:300])
