"""When a site proposes the next run by itself: by a clock that is an argument, and by which rows are new."""

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("cryptography")
pytest.importorskip("msgspec")
from peerbayes.errors import ConfigurationError
from peerbayes.peer import service
from peerbayes.peer.runs.new_rows import EVERY, FILE, NewRows, remember, share_of_new
from peerbayes.peer.runs.timetable import Schedule
from peerbayes.peer.site import Site
from peerbayes.peer.state.store import RoundRecord, Store
from shared.runs_of_folders import Folders, some_rows, terms_of

# --- the clock


def at(text):
    """A moment of the week from Monday, 2 November 2026: "mon 03:00"; "mon+1 03:00" is a week later."""
    day, clock = text.split()
    name, _, weeks = day.partition("+")
    hours, minutes = map(int, clock.split(":"))
    days = ("mon", "tue", "wed", "thu", "fri", "sat", "sun").index(name) + 7 * int(weeks or 0)
    return datetime(2026, 11, 2, tzinfo=UTC) + timedelta(days=days, hours=hours, minutes=minutes)


@pytest.mark.parametrize(
    ("every", "last", "then"),
    [
        ("monday 03:00", "mon 02:59", "mon 03:00"),
        ("monday 03:00", "mon 03:00", "mon+1 03:00"),  # not twice at the same moment
        ("monday 03:00", "mon 03:01", "mon+1 03:00"),
        ("monday 03:00", "sun 23:59", "mon+1 03:00"),
        ("sunday 23:59", "mon 00:00", "sun 23:59"),
        ("thursday 12:30", "fri 12:30", "thu+1 12:30"),
        ("day 03:00", "tue 02:00", "tue 03:00"),
        ("day 03:00", "tue 03:00", "wed 03:00"),
        ("24 h", "tue 14:05", "wed 14:05"),
        ("7 days", "tue 14:05", "tue+1 14:05"),
    ],
)
def test_the_next_regular_time(every, last, then):
    schedule = Schedule(every=every)
    assert schedule.next_after(at(last)) == at(then)
    assert schedule.due(at(last), at(then)) == f"schedule: every {every}"
    assert schedule.due(at(last), at(then) - timedelta(seconds=1)) == ""
    assert schedule.due(at(last), at(then) + timedelta(days=30)), (
        "a site that was off for a month is late, and goes"
    )


def test_regular_times_are_those_of_the_machines_time_zone():
    zone = timezone(timedelta(hours=-5))
    then = Schedule(every="monday 03:00").next_after(at("sun 23:00").astimezone(zone))
    assert then == at("mon+1 08:00") and then.utcoffset() == timedelta(hours=-5)


def test_without_regular_times_no_time_is_due():
    schedule = Schedule(new_rows=0.05)
    assert schedule.next_after(at("mon 00:00")) is None
    assert schedule.due(at("mon 00:00"), at("mon+9 00:00")) == ""


@pytest.mark.parametrize(
    "every", ["monday", "monday 3:00", "monday 24:00", "0 h", "someday 03:00", "7 weeks"]
)
def test_a_time_that_is_none_is_refused(every):
    with pytest.raises((ConfigurationError, ValueError), match="monday 03:00"):
        Schedule(every=every)


# --- the rows


@pytest.mark.parametrize(
    ("before", "now", "share"),
    [
        ([1, 2, 3, 4], [4, 3, 2, 1], 0.0),
        ([1, 2, 3, 4], [1, 2, 3, 4, 5], 0.25),
        ([1, 2, 3, 4], [5], 0.25),  # that rows are gone makes none new
        ([1, 1, 2, 2], [1, 1, 1, 2, 2], 0.25),  # copies count
        ([1, 2], [1, 1, 1, 1], 1.5),
        ([1, 1, 1, 2], [1, 3], 0.25),  # nor that copies are gone
        ([1, 2, 3, 4], [], 0.0),
        ([], [1, 2], 2.0),
        ([5, 6], [1, 2, 7], 1.5),
    ],
)
def test_the_share_of_rows_that_are_new(before, now, share):
    assert share_of_new(np.sort(np.array(before, dtype=float)), np.array(now, dtype=float)) == share


def test_of_rows_that_are_exactly_so_many_a_run_is_due():
    schedule = Schedule(new_rows=0.05)
    moment = at("mon 00:00")
    twenty = np.arange(20.0)
    assert (
        schedule.due(moment, moment, share_of_new(twenty, np.arange(21.0)))
        == "schedule: 5.0% of the rows are new"
    )
    assert schedule.due(moment, moment, share_of_new(np.arange(21.0), np.arange(22.0))) == ""
    assert schedule.due(moment, moment, None) == ""


# --- a site, whose clock is an argument


class Planned(Folders):
    """Folders whose first run has ended, at a moment of the clock."""

    def __init__(self, folder, remembered=True):
        super().__init__(folder, features={"a": "continuous", "b": "continuous"})
        self.now = at("wed 10:00").timestamp()
        self.home, self.ticks = self.network.homes["peer-2"], 0.0
        for home in self.network.homes.values():
            if remembered:
                service.claimed(home, service.rows_of_run(home, home.load()))
            end_of(home, self.book(home.folder.name))
        self.site = Site(self.home, clock=lambda: self.now)
        self.site.runs, self.site._reported = self.runs["peer-2"], set()
        self.site._rows = NewRows(self.home.folder, lambda: self.ticks)
        self.site.session = SimpleNamespace(name="peer-2", roster=self.home.roster())

    def planned(self, text):
        (self.home.folder / "schedule.toml").write_text(text)
        return self

    def proposed(self):
        """Which runs are proposed once the site has looked, each with who decided."""
        asyncio.run(self.site._propose(self.site.runs.entries()))
        entries = [entry for entry in self.site.runs.entries() if entry.proposal is not None]
        return {entry.number: entry.decisions["peer-2"].by for entry in entries}

    def add_rows(self, count):
        data = self.home.settings().data
        table = pd.concat([pd.read_csv(data), some_rows(500 + count, count)], ignore_index=True)
        table.to_csv(data, index=False)
        self.ticks += EVERY


def end_of(home, runs, number=1):
    with contextlib.closing(Store(home.of_run(number).state_path)) as store:
        store.identity()
        store.add_round(RoundRecord(0, (np.zeros((2, 2)),), {}, (), ()))
        store.keep("verdict", '{"good": true, "sentences": ["fine"]}')
    runs.end(number, "done", "fine")


def test_a_site_proposes_every_monday(tmp_path):
    local = datetime.fromtimestamp(at("mon+1 03:00").timestamp()).astimezone()
    monday = local.replace(hour=3, minute=0) + timedelta(days=-local.weekday())
    planned = Planned(tmp_path).planned('every = "monday 03:00"\n')
    planned.now = monday.timestamp() - 3 * 86400
    planned.runs["peer-2"].end(1, "done", "fine")
    planned.now = monday.timestamp() - 1
    assert planned.proposed() == {}
    planned.now = monday.timestamp()
    assert planned.proposed() == {2: "schedule: every monday 03:00"}
    planned.now += 60
    assert planned.proposed() == {2: "schedule: every monday 03:00"}, "not while another one waits"
    planned.runs["peer-2"].end(2, "left", "given up")
    planned.now = monday.timestamp() + 6.9 * 86400
    assert len(planned.proposed()) == 1, "a week from when it was proposed"
    planned.now = monday.timestamp() + 7 * 86400 + 3600
    assert [*planned.proposed()] == [2, 3]


def test_a_site_proposes_when_so_many_rows_are_new_though_the_schedule_came_after_the_run(tmp_path):
    planned = Planned(tmp_path).planned("new_rows = 0.05\n")
    assert planned.proposed() == {}
    planned.add_rows(1)  # of 40
    assert planned.proposed() == {}
    planned.add_rows(1)
    assert planned.proposed() == {2: "schedule: 5.0% of the rows are new"}


def test_rows_are_compared_with_those_of_the_last_run(tmp_path):
    planned = Planned(tmp_path).planned("new_rows = 0.5\n")
    planned.add_rows(19)
    assert planned.proposed() == {}
    planned.runs["peer-2"].propose(terms_of(features={"a": "continuous", "b": "continuous"}).to_toml())
    planned.pass_on()
    for name in ("peer-1", "peer-3"):
        planned.runs[name].approve(2)
    planned.pass_on()
    home = planned.home.of_run(2)
    (home.records / "proposal").write_text(planned.runs["peer-2"].entry(2).proposal.digest)
    (home.records / "roster.json").write_bytes(planned.home.roster_path.read_bytes())
    service.claimed(home, service.rows_of_run(home, home.load()))
    end_of(planned.home, planned.runs["peer-2"], 2)
    planned.add_rows(20)
    assert [*planned.proposed()] == [2], "20 of 59"
    planned.add_rows(10)
    assert [*planned.proposed()] == [2, 3], "30 of 59"


def test_rows_are_looked_at_once_a_minute(tmp_path):
    planned = Planned(tmp_path).planned("new_rows = 0.05\n")
    assert planned.proposed() == {}
    planned.add_rows(10)
    planned.ticks -= 1.0
    assert planned.proposed() == {}
    planned.ticks += 1.0
    assert [*planned.proposed()] == [2]


def test_where_no_run_remembered_its_rows_a_site_says_so(tmp_path, caplog):
    planned = Planned(tmp_path, remembered=False).planned("new_rows = 0.05\n")
    planned.add_rows(30)
    assert planned.proposed() == {} == planned.proposed()
    assert sum("which rows are new is not known" in each.getMessage() for each in caplog.records) == 1


def test_a_run_that_begins_afresh_by_schedule(tmp_path):
    planned = Planned(tmp_path).planned('every = "24 h"\nwarm = false\n')
    planned.now += 86400.0
    planned.proposed()
    assert planned.runs["peer-2"].entry(2).proposal.warm_from is None


def test_digests_of_rows_are_of_no_use_without_the_folders_key(tmp_path):
    homes = Folders(tmp_path).network.homes
    table = some_rows(9)
    for home in homes.values():
        remember(home, table[["a", "b"]], table["y"].to_numpy())
    assert len({(home.folder / FILE).read_bytes() for home in homes.values()}) == len(homes)


@pytest.mark.parametrize("state", ["proposed", "approved"])
def test_a_site_that_proposes_waits_while_another_run_does(tmp_path, state):
    planned = Planned(tmp_path).planned('every = "24 h"\n')
    planned.runs["peer-1"].propose(days=30)
    planned.pass_on()
    if state == "approved":
        for name in ("peer-2", "peer-3"):
            planned.runs[name].approve(2)
        planned.pass_on()
    assert planned.site.runs.entry(2).state == state
    planned.now += 3 * 86400.0
    asyncio.run(planned.site._propose(planned.site.runs.entries()))
    assert planned.home.run_numbers() == [1, 2]
    planned.now += 40 * 86400.0  # it has expired
    asyncio.run(planned.site._propose(planned.site.runs.entries()))
    assert planned.home.run_numbers() == [1, 2, 3]
