"""Real peers that lose the messages of a trace, and no others, without waiting for a clock."""

import msgspec

from peerbayes.peer.protocol import wire
from peerbayes.peer.protocol.transport import Unreachable
from peerbayes.peer.protocol.wire import Request
from shared.memory_transport import Hub, InMemory
from shared.peers_in_memory import Peers


class Losses:
    """Whether a message to a peer is lost, by names."""

    def __init__(self, trace, names):
        self.lost = {(turn, names[sender], names[receiver]) for turn, sender, receiver in trace.messages}

    def drop(self, request, sender, receiver):
        """Raise what a caller sees when the reply to its request does not arrive."""
        asked = msgspec.msgpack.decode(request, type=Request)
        if asked.kind in wire.OF_ROUND and (asked.round_index, sender, receiver) in self.lost:
            raise Unreachable(f"the message of round {asked.round_index} from {sender} is lost")

    def skip_waiting(self, node):
        """Let the deadline of a round pass as soon as the peer waits for lost messages only, and never before."""
        inbox, session, seconds = node._rounds._inbox, node.session, [0.0]

        def now():
            senders = () if session.agreed is None else inbox._senders(session.agreed)
            waiting = [name for name in senders if inbox.lacks(name) and name in session.neighbours]
            if waiting and all(
                (node.session.round_index + 1, name, session.name) in self.lost for name in waiting
            ):
                seconds[0] += 10 * session.terms.limits.deadline
            return seconds[0]

        inbox.now = now
        return node


class LosingHub(Hub):
    """A network in memory that delivers every request, and drops the replies that are lost."""

    losses = None

    def transport(self, name):
        return LosingTransport(self, name)


class LosingTransport(InMemory):
    async def ask(self, neighbour, request, timeout):
        reply = await super().ask(neighbour, request, timeout)
        self.hub.losses.drop(request, neighbour, self.name)
        return reply


class LosingPeers(Peers):
    """Peers in memory that lose the messages of a trace; their deadlines pass for these alone, unless `waiting`."""

    def __init__(self, folder, terms, graph, tables, trace, waiting=False):
        super().__init__(folder, terms, graph, tables)
        self.hub, self.waiting = LosingHub(), waiting
        self.hub.losses = Losses(trace, self.names)

    def node(self, name, **more):
        node = super().node(name, **more)
        return node if self.waiting else self.hub.losses.skip_waiting(node)
