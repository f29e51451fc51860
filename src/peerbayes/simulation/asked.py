"""The settings of a simulation, and which of them do not go together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from peerbayes.arguments import refusal
from peerbayes.attacks import Attack
from peerbayes.defence import STRATEGIES as DEFENDED
from peerbayes.places import Place
from peerbayes.privacy import simulated as private
from peerbayes.privacy.terms import Privacy
from peerbayes.simulation.checks import as_json, both, check_sizes, checked
from peerbayes.strategies import Strategy


@dataclass(frozen=True, eq=False)
class Asked:
    """The settings that a run records, in the order of `simulate`, which explains them."""

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
    def of(cls, arguments: Mapping[str, Any]) -> Asked:
        """Return the settings among the arguments of `simulate`, after checking all arguments."""
        plain = checked(arguments)
        return cls(**{setting.name: plain[setting.name] for setting in fields(cls)})

    def __post_init__(self) -> None:
        """Refuse settings that do not go together before any work starts."""
        check_sizes(self.rows_per_node, self.nodes, self.partition)
        if (
            self.message_delay
            and not isinstance(self.strategy, str)
            and not hasattr(self.strategy, "takes_old")
        ):
            raise refusal(
                "strategy",
                self.strategy,
                "one with an attribute takes_old, which says whether it uses late messages, or no message_delay",
            )
        if self.privacy is not None:
            private.refuse(
                self.privacy, self.strategy, self.family, self.local_steps, self.objective, self.device, self.dtype,
                self.robust,
            )  # fmt: skip
        self._check_robust()
        if self.secure_sum and self.checks_messages:
            raise ValueError(
                "secure_sum hides single messages, which robust checks and attack forges; choose one of them"
            )

    @property
    def configuration(self) -> dict[str, Any]:
        """All settings as JSON can hold them; privacy and attack with all fields."""
        configuration: dict[str, Any] = {}
        for setting in fields(self):
            configuration[setting.name] = as_json(getattr(self, setting.name))
        if self.privacy is not None:
            configuration["privacy"] = asdict(self.privacy)
        if self.attack is not None:
            configuration["attack"] = str(self.attack)
        return configuration

    @cached_property
    def place(self) -> Place:
        """Device and precision of arrays."""
        return Place(self.device, self.dtype)

    @property
    def checks_messages(self) -> bool:
        """Whether messages may be false, so that receivers check them."""
        return self.robust is not None or self.attack is not None

    @property
    def checks_reports(self) -> bool:
        """Whether reports before the first round may be false, or are checked against the bounds of members."""
        false = self.attack is not None and self.attack.report is not None
        return self.privacy is None and (self.robust is not None or false)

    @property
    def lossy(self) -> bool:
        """Whether messages or peers may be missing."""
        return bool(self.message_loss or self.message_delay or self.peers_down)

    @property
    def judged_rows(self) -> tuple[int | None, int | None]:
        """The number of training rows and test rows that peers are evaluated on; None: see `metrics.drawn`."""
        return both(self.evaluate_rows)

    def _check_robust(self) -> None:
        if not self.checks_messages:
            return
        name = getattr(self.strategy, "name", self.strategy)
        if name not in DEFENDED:
            raise ValueError(
                f"strategy is {name!r}; robust combining and attacks are for {' and '.join(DEFENDED)}, whose messages "
                "are a peer's own statistics"
            )
        if self.privacy is not None and self.attack is not None and self.attack.report is not None:
            raise ValueError(
                f"privacy and an attack with report={self.attack.report!r}; private peers report only noisy values: "
                "leave the report out"
            )
        if self.message_delay and name == "crc":
            raise ValueError(
                "message_delay is above 0; with robust or attack crc takes no messages of the previous round"
            )
