"""When a site proposes the next run by itself: schedule.toml in its folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from peerbayes.data.declarations import (
    Kind,
    Setting,
    check_fields,
    optional,
    read_settings,
    real_number,
    text_value,
    true_or_false,
)

FILE = "schedule.toml"

DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
WEEKLY = re.compile(rf"({'|'.join(('day', *DAYS))}) ([01]\d|2[0-3]):([0-5]\d)")
REGULAR = re.compile(r"([1-9]\d{0,4}) (h|days)")

TIMES: Kind = optional(
    text_value(
        '"monday 03:00", "day 03:00", "24 h" or "7 days"',
        lambda text: WEEKLY.fullmatch(text) or REGULAR.fullmatch(text),
    ),
    "for no regular times",
)


@dataclass(frozen=True)
class Schedule:
    """When the next run is proposed: at regular times, or when enough rows are new; whichever comes first."""

    # fmt: off
    every: str | None = Setting(
        None, TIMES, "when the next run is proposed, by this machine's clock and time zone",
        example="monday 03:00").field()
    new_rows: float | None = Setting(
        None, optional(real_number("a share above 0", above=0.0), "for no such condition"),
        "share of new rows, of those that the last run learned from, at which the next run is proposed",
        example=0.05).field()
    warm: bool = Setting(
        True, true_or_false(), "whether it begins with the model of the last run").field()
    # fmt: on

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def read(cls, path: Path) -> Schedule | None:
        """Read the schedule in a file; None: there is no such file."""
        return read_settings(cls, path, "no entry of a schedule")

    def next_after(self, last: datetime) -> datetime | None:
        """Return the first regular time after another one; None: there are none."""
        if self.every is None:
            return None
        if regular := REGULAR.fullmatch(self.every):
            count = int(regular[1])
            return last + (timedelta(hours=count) if regular[2] == "h" else timedelta(days=count))
        weekly = WEEKLY.fullmatch(self.every)
        assert weekly is not None
        then = last.replace(hour=int(weekly[2]), minute=int(weekly[3]), second=0, microsecond=0)
        while then <= last or (weekly[1] != "day" and DAYS[then.weekday()] != weekly[1]):
            then += timedelta(days=1)
        return then

    def due(self, last: datetime, now: datetime, new: float | None = None) -> str:
        """Return why the next run is to be proposed now; "": it is not.

        last  when the last run was proposed or, for the first one, ended
        new   the share of new rows since then, where it is known
        """
        time = self.next_after(last)
        if time is not None and now >= time:
            return f"schedule: every {self.every}"
        if self.new_rows is not None and new is not None and new >= self.new_rows:
            return f"schedule: {new:.1%} of the rows are new"
        return ""
