"""Which settings go together: one table of rules for the simulator, its shards and agreements of real peers.

    refuse(Combination(...), error)        raises the sentence of the first rule that is broken

A driver describes its own settings as a `Combination` and asks before any work starts; it asks again as soon as it
knows more: the network, which values are missing, or what a strategy of an outside package declares. Rules ask what
strategies and families declare, never for a name. There is no rule about lost or late messages and absent peers: real
networks may have them at any time, so every combination runs with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from peerbayes.learning import planning
from peerbayes.learning.few_bytes import exchange_count
from peerbayes.learning.integer_sums import MIN_GROUP
from peerbayes.learning.selection import LAST
from peerbayes.learning.strategies import Declaration, LearningSettings, NetworkFacts
from peerbayes.model.candidates import AUTO
from peerbayes.model.families import FAMILIES, BayesNet
from peerbayes.model.layout import LEARNED, STRUCTURES, has_crosses

# Of a strategy whose package is not imported yet: it breaks no rule, and the rules are asked again once it is.
NOT_LOADED = Declaration(judged=True)


@dataclass(frozen=True, kw_only=True)
class Combination:
    """The settings of a run that may exclude each other, and facts about it; a fact is None until it is known.

    strategy        a name, or a strategy of the user's own
    family          the name of a family
    robust          the defence against false messages: None, "clip" or "guard"
    epsilon         ε of differential privacy; None: no noise
    attack          whether simulated peers lie
    report          what they report falsely before the first round; None: nothing
    sharded         whether the network is simulated in shards
    structure       whether links or crosses of columns are declared instead of learned
    bought          what is estimated with noise before the first round, beside the start and the structure; each with
                    what to declare instead
    changing        whether links change from round to round; absent peers do not count
    few_neighbours  who has too few neighbours for secure sums, as a clause; empty: nobody
    gaps            names of columns in which values are, or may be, missing
    completed       whether values are missing that the family completes by its model
    baselines       the baselines that send messages of their own
    """

    strategy: Any
    family: str
    start: str = "uniform"
    local_steps: int = 1
    objective: str = "rows"
    robust: str | None = None
    secure_sum: bool = False
    epsilon: float | None = None
    edge_noise: float = 0.0
    attack: bool = False
    report: str | None = None
    device: str | None = None
    dtype: str = "float64"
    messages: str = "float64"
    exchanges: int | None = None
    select: str = LAST
    evaluation: str = "none"
    sharded: bool = False
    structure: bool = False
    baselines: tuple[str, ...] = ()
    bought: tuple[tuple[str, str], ...] = ()
    changing: bool | None = None
    few_neighbours: str | None = None
    gaps: tuple[str, ...] | None = None
    completed: bool | None = None

    @property
    def name(self) -> str:
        """The name of the strategy."""
        return planning.name_of(self.strategy)

    @property
    def exchange_count(self) -> int:
        """Exchanges of messages in a round."""
        return exchange_count(self.messages, self.exchanges)

    @property
    def few_bytes(self) -> bool:
        """Whether messages are rounded, or a round has several exchanges."""
        return self.messages != "float64" or self.exchange_count > 1

    @property
    def declaration(self) -> Declaration:
        """What the strategy declares."""
        return planning.declaration_of(self.strategy) if self._kind is not None else NOT_LOADED

    @property
    def doubted(self) -> str:
        """Why messages may be false, as words of a sentence."""
        return "an attack" if self.robust is None else f"robust {self.robust!r}"

    @property
    def unprotected(self) -> str:
        """What the strategy sends that noise on residuals does not protect, and what to do; empty: nothing."""
        reasons = {
            "it begins with each peer's own sums of rows": self.declaration.own_start,
            "it is set up by a measurement of the rows": self._measures,
            "it learns weights from rows": planning.of_weights(self.strategy),
        }
        advice = "use a strategy of statistics that knows rows by their residuals alone"
        undeclared = (f"{reason}; {advice}" for reason, applies in reasons.items() if applies)
        return self.declaration.exposes or next(undeclared, "")

    @property
    def marks_missing(self) -> bool:
        """Whether the family represents missing values by themselves, so that none has to be completed."""
        kind = BayesNet if self.family in STRUCTURES else FAMILIES.present(self.family)
        return kind is None or kind.marks_missing

    @property
    def linear(self) -> bool:
        """Whether the family's log joint is linear in φ, as weights that are learned by themselves must have it."""
        kind = BayesNet if self.family in STRUCTURES else FAMILIES.present(self.family)
        return kind is None or kind.linear

    @property
    def learns_structure(self) -> bool:
        """Whether links or crosses of columns are learned from rows before the first round."""
        return self.family in LEARNED and not self.structure

    @property
    def all_bought(self) -> tuple[tuple[str, str], ...]:
        """What is estimated with noise before the first round, each with what to declare instead."""
        start = ((f"start {self.start!r}", "start 'uniform'"),) * (self.start != "uniform")
        structure = ((f"the structure of {self.family}", "a structure"),) * self.learns_structure
        return start + structure + self.bought

    @property
    def _measures(self) -> bool:
        """Whether the strategy is missing facts also where rows are private: those are measured on rows."""
        private = LearningSettings(self.strategy, 1, private=True)
        return hasattr(self._kind, "missing") and bool(self._kind.missing(private, NetworkFacts(1, 1.0)))

    @property
    def _kind(self) -> Any:
        return planning.kind_of(self.strategy)


class Rule(NamedTuple):
    """A combination that is refused, and why. The sentence begins with the setting that an error is about."""

    broken: Callable[[Combination], Any]
    sentence: str


def refuse(combination: Combination, error: type[Exception] = ValueError) -> None:
    """Raise the sentence of the first rule that is broken."""
    for sentence in problems(combination):
        raise error(sentence)


def problems(run: Combination) -> Iterator[str]:
    """Yield the sentence of every rule that is broken."""
    for rule in RULES:
        if rule.broken(run):
            yield rule.sentence.format(
                run=run,
                gaps=", ".join(map(repr, (run.gaps or ())[:3])),
                summed=_names(lambda declaration: declaration.summed),
                single=_names(lambda declaration: declaration.matrices == 1),
                settling=_names(lambda declaration: not declaration.convex and declaration.matrices == 1),
                judged=_names(lambda declaration: declaration.judged),
                without_tree=_names(lambda declaration: not declaration.over_tree),
                families=_families(lambda kind: kind.linear),
                complete=f"family {_families(lambda kind: kind.marks_missing)}, or rows without missing values",
                learned=f"one of {', '.join(LEARNED)}",
                group=MIN_GROUP,
            )


def excluded(run: Combination, strategy: str = planning.OVER_TREE) -> str:
    """Return why a strategy, by its name, does not go with these settings, as a clause; empty: it does."""
    return next(problems(replace(run, strategy=strategy)), "").partition("; expected")[0]


def _names(fits: Callable[[Declaration], bool]) -> str:
    """Return the strategies whose declarations fit, as text."""
    return f"one of {', '.join(planning.names(fits))}"


def _families(fits: Callable[[Any], bool]) -> str:
    """Return the built-in families that fit, as text; Bayesian networks need a structure that is known beforehand."""
    kinds = {name: FAMILIES[name] for name in FAMILIES if name in FAMILIES.built_in}
    return " or ".join(name for name, kind in kinds.items() if _known_beforehand(kind) and fits(kind))


def _known_beforehand(kind: Any) -> bool:
    """Return whether a family has nothing but numbers to be learned."""
    return kind is not BayesNet and not kind.takes_crosses


RULES = (
    # --- a family that peers choose together: by sums that nothing hides, noise does not protect and nobody checks
    Rule(lambda run: run.family == AUTO and run.secure_sum,
         "family {run.family!r} with secure_sum: candidates are judged by sums along a tree that tell a leaf's "
         "statistics to its neighbour; expected a family by its name, {families}"),
    Rule(lambda run: run.family == AUTO and run.epsilon,
         "family {run.family!r} with epsilon {run.epsilon:g}: candidates are judged by exact sums over rows, and "
         "nothing accounts for them; expected a family by its name, {families}"),
    Rule(lambda run: run.family == AUTO and (run.robust or run.attack),
         "family {run.family!r} with {run.doubted}: one false sum would decide which family everybody takes; expected "
         "a family by its name, {families}"),
    Rule(lambda run: run.family == AUTO and run.sharded,
         "family {run.family!r} with shards, whose peers agree on nothing but the schema; expected a family by its "
         "name, {families}, or `simulate`"),
    Rule(lambda run: run.family == AUTO and planning.of_weights(run.strategy),
         "family {run.family!r} with strategy {run.name!r}, which learns weights, while candidates are judged by their "
         "statistics; expected a family by its name, {families}"),
    Rule(lambda run: run.family == AUTO and run.declaration.own_start,
         "family {run.family!r} with strategy {run.name!r}, which ends with maximum likelihood, while candidates are "
         "judged as they are calibrated; expected a family by its name, {families}"),
    # --- secure sums: nobody sees a single message
    Rule(lambda run: run.secure_sum and not run.declaration.summed,
         "secure_sum with strategy {run.name!r}, which needs single messages; expected {summed}"),
    Rule(lambda run: run.secure_sum and run.robust,
         "secure_sum with robust {run.robust!r}: masked messages cannot be judged; expected one of the two"),
    Rule(lambda run: run.secure_sum and run.attack,
         "secure_sum with an attack, which forges single messages, and sums hide them; expected one of the two"),
    Rule(lambda run: run.secure_sum and run.start != "uniform",
         "secure_sum with start {run.start!r}, which is agreed on by sums along a tree that tell a leaf's "
         "statistics to its neighbour; expected start 'uniform'"),
    Rule(lambda run: run.secure_sum and run.learns_structure and not run.epsilon,
         "secure_sum with family {run.family!r}, whose structure is agreed on by sums along a tree that tell a leaf's "
         "statistics to its neighbour; expected a structure, an epsilon, or {families}"),
    # --- differential privacy: nothing of the rows leaves a peer but residuals with noise
    Rule(lambda run: run.epsilon and run.unprotected,
         "epsilon {run.epsilon:g} with strategy {run.name!r}, which sends what noise cannot protect: "
         "{run.unprotected}"),
    Rule(lambda run: run.epsilon and run.family not in (*LEARNED, AUTO) and run.family not in FAMILIES.built_in,
         "epsilon {run.epsilon:g} with family {run.family!r}, which is not built in: nobody has checked that a row "
         "changes no other row's part; expected {families}"),
    Rule(lambda run: run.epsilon and not run.linear,
         "epsilon {run.epsilon:g} with family {run.family!r}, whose log joint is not computed row by row, so that one "
         "may change the last bits of another row's part; expected {families}"),
    Rule(lambda run: run.epsilon and run.local_steps > 1,
         "epsilon {run.epsilon:g} with local_steps {run.local_steps}, each of which would be a release of its own; "
         "expected 1"),
    Rule(lambda run: run.epsilon and run.objective == "peers",
         "epsilon {run.epsilon:g} with objective 'peers', which weighs a row by how many its peer has, so that one "
         "row changes the weights of all others; expected 'rows'"),
    Rule(lambda run: run.epsilon and (run.device is not None or run.dtype != "float64"),
         "epsilon {run.epsilon:g} with device {run.device!r} and dtype {run.dtype!r}; expected NumPy and float64, "
         "which exact sums need: leave out both"),
    Rule(lambda run: run.epsilon and run.robust == "guard",
         "epsilon {run.epsilon:g} with robust 'guard': whom a peer cuts off tells of its rows, and nothing accounts "
         "for it; expected robust 'clip'"),
    Rule(lambda run: run.epsilon and run.robust and run.all_bought,
         "epsilon {run.epsilon:g} with robust {run.robust!r}, where {run.all_bought[0][0]} is bought: one liar can "
         "move a sum of releases as far as it likes, and their noise leaves nothing to check it by; expected "
         "{run.all_bought[0][1]}"),
    Rule(lambda run: run.epsilon and run.report is not None,
         "epsilon {run.epsilon:g} with an attack whose report is {run.report!r}; private peers report only noisy "
         "values: leave the report out"),
    Rule(lambda run: run.edge_noise and run.robust,
         "edge_noise {run.edge_noise:g} with robust {run.robust!r}: it cancels in sums, and clipped messages do not "
         "add up; expected edge_noise 0, or no robust"),
    # --- messages that may be false
    Rule(lambda run: run.robust and not run.declaration.judged,
         "robust {run.robust!r} with strategy {run.name!r}, whose messages cannot be judged singly; expected "
         "{judged}, whose messages are a peer's own statistics"),
    Rule(lambda run: run.attack and not run.declaration.judged,
         "attack with strategy {run.name!r}, whose messages cannot be judged singly; expected {judged}, whose "
         "messages are a peer's own statistics"),
    # --- structures that are declared
    Rule(lambda run: run.structure and run.family not in LEARNED,
         "structure with family {run.family!r}, which neither links nor crosses columns; expected {learned}, or no "
         "structure"),
    # --- weights that are learned by themselves
    Rule(lambda run: planning.of_weights(run.strategy) and not run.linear,
         "strategy {run.name!r} with family {run.family!r}: it learns weights of a log joint that is linear in them, "
         "and that of {run.family} is a mean of several models; expected a strategy of statistics, or {families}"),
    # --- baselines: softmax regression on the features of the family
    Rule(lambda run: run.baselines and run.attack,
         "baselines {run.baselines[0]!r} with an attack: attackers lie in messages of statistics, and those of this "
         "baseline are weights; expected baselines that learn in one place or alone, or no attack"),
    Rule(lambda run: run.baselines and not run.linear,
         "baselines {run.baselines[0]!r} with family {run.family!r}, whose features are those of several models; "
         "expected other baselines, or {families}"),
    # --- rounded messages, and several of them in a round
    Rule(lambda run: run.few_bytes and run.declaration.matrices > 1,
         "messages {run.messages!r} in {run.exchange_count} exchanges a round with strategy {run.name!r}, whose "
         "message has {run.declaration.matrices} matrices that belong together; expected {single}"),
    Rule(lambda run: run.few_bytes and run.declaration.convex,
         "messages {run.messages!r} in {run.exchange_count} exchanges a round with strategy {run.name!r}, whose peers "
         "leave themselves out of their mix: messages stay far from the ones before, and what rounding leaves out adds "
         "up; expected {settling}"),
    Rule(lambda run: run.few_bytes and run.declaration.by_sums,
         "messages {run.messages!r} in {run.exchange_count} exchanges a round with strategy {run.name!r}, whose "
         "messages are exact sums; expected messages 'float64', and one exchange a round"),
    Rule(lambda run: run.declaration.by_sums and (run.dtype != "float64" or run.device is not None),
         "strategy {run.name!r} with device {run.device!r} and dtype {run.dtype!r}; expected NumPy and float64: leave "
         "out both"),
    Rule(lambda run: run.few_bytes and run.secure_sum,
         "messages {run.messages!r} in {run.exchange_count} exchanges a round with secure_sum: masked numbers take "
         "eight bytes each, however they are rounded, and every exchange needs its own masks; expected one of the two"),
    Rule(lambda run: run.few_bytes and (run.robust or run.attack),
         "messages {run.messages!r} in {run.exchange_count} exchanges a round with {run.doubted}: the bounds by which "
         "messages are judged are those of one unrounded message a round; expected one of the two"),
    # --- a round chosen by held-out rows
    Rule(lambda run: run.select != LAST and run.epsilon,
         "select {run.select!r} with epsilon {run.epsilon:g}: the log losses of held-out rows would be told exactly, "
         "and nothing accounts for them; expected select 'last'"),
    Rule(lambda run: run.select != LAST and run.secure_sum,
         "select {run.select!r} with secure_sum: log losses are added along a tree, which tells a leaf's to its "
         "neighbour; expected one of the two"),
    Rule(lambda run: run.select != LAST and (run.robust or run.attack),
         "select {run.select!r} with {run.doubted}: one false log loss would decide which round everybody keeps, and "
         "when all stop; expected select 'last'"),
    # --- the figures of all sites after a run
    Rule(lambda run: run.evaluation != "none" and run.epsilon,
         "evaluation {run.evaluation!r} with epsilon {run.epsilon:g}: errors and scores of held-out rows would be told "
         "exactly, and nothing accounts for them; expected evaluation 'none'"),
    # --- crosses of columns: peers agree on them by sums before the first round
    Rule(lambda run: has_crosses(run.family) and (run.robust or run.attack),
         "family {run.family!r} with {run.doubted}: crosses are agreed on by sums that nobody checks for lies; "
         "expected {families}"),
    # --- shards: they add up messages, and agree on nothing but the schema
    Rule(lambda run: run.sharded and not run.declaration.summed,
         "shards with strategy {run.name!r}, which needs single messages; expected {summed}, or `simulate`"),
    Rule(lambda run: run.sharded and run.family in LEARNED,
         "shards with family {run.family!r}, whose structure peers learn first; expected {families}, or `simulate`"),
    Rule(lambda run: run.sharded and run.start != "uniform",
         "shards with start {run.start!r}, which peers agree on first; expected start 'uniform', or `simulate`"),
    # --- facts about the network
    Rule(lambda run: run.secure_sum and run.changing,
         "secure_sum with a network that changes, and with it the groups whose messages are summed; expected a fixed "
         "network"),
    Rule(lambda run: run.secure_sum and run.few_neighbours,
         "secure_sum with a network in which {run.few_neighbours}; secure sums need {group} or more at every peer, "
         "since single messages can be inferred from a sum of fewer: add links, or leave out secure_sum"),
    Rule(lambda run: run.edge_noise and run.changing,
         "edge_noise {run.edge_noise:g} with a network that changes: it cancels between neighbours that stay so; "
         "expected edge_noise 0, or a fixed network"),
    Rule(lambda run: run.robust == "guard" and run.changing,
         "robust 'guard' with a network that changes: it counts strikes on links; expected robust 'clip', or a fixed "
         "network"),
    Rule(lambda run: run.declaration.over_tree and run.changing,
         "strategy {run.name!r} with a network that changes, so that no spanning tree stays; expected a fixed "
         "network, or {without_tree}"),
    Rule(lambda run: run.select != LAST and run.changing,
         "select {run.select!r} with a network that changes, so that no spanning tree stays to sum along; expected a "
         "fixed network, or select 'last'"),
    Rule(lambda run: run.sharded and run.changing,
         "shards with a network that changes; expected a fixed network, or `simulate`"),
    # --- facts about the rows
    Rule(lambda run: run.secure_sum and run.declaration.own_start and run.completed,
         "secure_sum with strategy {run.name!r} and missing values, which {run.family} completes by sums along a tree "
         "that tell a leaf's statistics to its neighbour; expected {complete}"),
    Rule(lambda run: run.epsilon and run.gaps and not run.marks_missing,
         "epsilon {run.epsilon:g} with missing values of {gaps}, which {run.family} completes by everybody's model, "
         "so that one row's part in a release has no bound; expected {complete}"),
    Rule(lambda run: planning.of_weights(run.strategy) and run.completed,
         "strategy {run.name!r} with missing values, which {run.family} completes by a model; {run.name} learns no "
         "generative model: expected another strategy, {complete}"),
    Rule(lambda run: run.baselines and run.completed,
         "baselines {run.baselines[0]!r} with missing values, which {run.family} completes by a model, and softmax "
         "regression learns none; expected other baselines, {complete}"),
    Rule(lambda run: run.sharded and run.completed,
         "shards with missing values, which {run.family} completes; expected {complete}, or `simulate`"),
)  # fmt: skip
"""Every combination that is refused; the first that is broken is what a user reads.

What settings say comes before facts: drivers learn facts at different times, and still give the same answer.
"""
