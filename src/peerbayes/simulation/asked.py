"""What a simulation is asked for: its settings, and which of them do not go together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from peerbayes.attacks import Attack
from peerbayes.defence import ROBUST
from peerbayes.defence import STRATEGIES as DEFENDED
from peerbayes.inputs import check_counts, check_names, check_shares
from peerbayes.places import Place
from peerbayes.privacy import simulated as private
from peerbayes.privacy.terms import Privacy
from peerbayes.strategies import Strategy


@dataclass(frozen=True, eq=False)
class Asked:
    """The settings that a run tells of, in the order of `simulate`, which says what they mean."""

    family: str
    kinds: Any
    nodes: int
    rows_per_node: Any
    topology: Any
    partition: Any
    strategy: str | Strategy
    start: str
    rounds: int
    lr: float
    local_steps: int
    change_every: int | None
    objective: str
    evaluate_every: int
    evaluate_rows: int | tuple[int, int] | None
    seed: int
    clip: float | None
    message_loss: float
    message_delay: float
    peers_down: float
    secure_sum: bool
    start_rounds: int
    privacy: Privacy | None
    robust: str | None
    attack: Attack | None
    device: str | None
    dtype: str

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Asked:
        """The settings among the arguments of `simulate`."""
        return cls(**{setting.name: given[setting.name] for setting in fields(cls)})

    def __post_init__(self) -> None:
        """Refuse what makes no sense before any work starts."""
        if self.privacy is not None:
            private.refuse(
                self.privacy, self.strategy, self.family, self.local_steps, self.objective, self.device, self.dtype,
                self.robust,
            )  # fmt: skip
        object.__setattr__(self, "attack", Attack.of(self.attack))  # a kind or a table will do
        self._check_robust()
        if self.secure_sum and self.checks_messages:
            raise ValueError(
                "secure_sum hides single messages, which robust and attack judge and forge; choose one"
            )
        check_names(self.family, self.strategy, self.start, self.objective, self.lr)
        check_counts(
            (self.rounds, "rounds", 1), (self.local_steps, "local_steps", 1),
            (self.evaluate_every, "evaluate_every", 0),
            *((count, "evaluate_rows", 1) for count in self.judged_rows if count is not None),
            (self.start_rounds, "start_rounds", 0),
        )  # fmt: skip
        check_shares(
            message_loss=self.message_loss, message_delay=self.message_delay, peers_down=self.peers_down
        )

    @property
    def configuration(self) -> dict[str, Any]:
        """All settings as JSON can hold them: of objects their type, or what they say of themselves."""
        told: dict[str, Any] = {}
        for setting in fields(self):
            value = getattr(self, setting.name)
            simple = isinstance(value, str | int | float | bool | tuple | None)
            told[setting.name] = value if simple else type(value).__name__
        if self.privacy is not None:
            told["privacy"] = asdict(self.privacy)
        if self.attack is not None:
            told["attack"] = str(self.attack)
        return told

    @cached_property
    def place(self) -> Place:
        """Where arrays are, and how precise."""
        return Place(self.device, self.dtype)

    @property
    def checks_messages(self) -> bool:
        """Whether messages may be false, so that receivers check them."""
        return self.robust is not None or self.attack is not None

    @property
    def lossy(self) -> bool:
        """Whether messages or peers are missing at times."""
        return bool(self.message_loss or self.message_delay or self.peers_down)

    @property
    def judged_rows(self) -> tuple[int | None, int | None]:
        """How many training rows and test rows peers are judged on; None: see `metrics.drawn`."""
        both = self.evaluate_rows
        return both if isinstance(both, tuple) else (both, both)

    def _check_robust(self) -> None:
        if self.robust not in ROBUST:
            raise ValueError(f"robust is {self.robust!r}; expected None, 'clip' or 'guard'")
        if not self.checks_messages:
            return
        name = getattr(self.strategy, "name", self.strategy)
        if name not in DEFENDED:
            raise ValueError(
                f"strategy is {name!r}; robust combining and attacks are for {' and '.join(DEFENDED)}, whose messages "
                "are a peer's own statistics"
            )
        if self.message_delay and name == "crc":
            raise ValueError(
                "message_delay is above 0; with robust or attack crc takes no messages of the round before"
            )
