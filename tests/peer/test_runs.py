"""Runs of one membership: who takes part, what is signed, and that all members come to the same state."""

import contextlib
import hashlib
import itertools
import json
import random
import shutil
from dataclasses import replace

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("msgspec")
from peerbayes.errors import BrokenRecord, ConfigurationError, IdentityError, PeerError, TermsError
from peerbayes.peer.agreement.column_facts import Facts, canonical
from peerbayes.peer.agreement.terms import Privacy, Robust
from peerbayes.peer.identity.roster import Roster
from peerbayes.peer.models.history import History
from peerbayes.peer.runs import Runs
from peerbayes.peer.runs.book import BEGINS, OF_ONE, OF_WINDOW, OPEN_OF_ONE, STANDING, NotYet
from peerbayes.peer.runs.documents import LARGEST_DECISION, Decision, Proposal
from peerbayes.peer.state.disk import lock
from peerbayes.peer.state.folder import Home
from peerbayes.peer.state.ledger import refuse_broken
from peerbayes.peer.state.store import Store
from peerbayes.peer.status import status, warnings_of
from shared.commands import peerbayes
from shared.runs_of_folders import Folders, terms_of

# --- the membership: who joins later does not change a run that goes on -------------------------------------


def joined(folders, tmp_path, name, links=None):
    """One more member of a network that is closed."""
    home = Home.create(tmp_path / name, name, "127.0.0.1:9999", str(tmp_path / name / "rows.csv"))
    founder = folders.network.founder
    invitation = founder.invite(name, home.request_path.read_bytes(), "127.0.0.1:9999", links)
    home.join(invitation.pack())
    folders.network.homes[name] = home
    folders.runs[name] = folders.book(name)
    return home


def test_the_first_run_stays_what_it_was_whoever_joins_or_is_revoked_later(tmp_path):
    folders = Folders(tmp_path, ((0, 1), (1, 2), (2, 3)))
    founder = folders.network.founder
    first = founder.roster()
    joined(folders, tmp_path, "late")
    founder.revoke("peer-2")  # in the middle: the others are linked
    last = founder.roster()
    assert last.run == first.run == last.of_run().run == last.first_run.run
    assert [member.name for member in last.first_run.members] == [member.name for member in first.members]
    assert last.first_run.links == first.links and last.first_run.revoked == ("peer-2",)
    assert len(last.parts(without=last.revoked)) == 1
    assert Roster.verified(founder.roster_path.read_bytes(), founder.authority()) == last


def test_a_roster_to_which_nothing_was_added_has_the_text_that_it_always_had(tmp_path):
    roster = Folders(tmp_path).network.founder.roster()
    plain = json.loads(roster.to_json())
    assert set(plain) == {"format", "network", "terms", "version", "members", "links", "revoked", "closed"}
    names = [member.name for member in roster.members]
    assert roster.run == keys_digest([roster.network, roster.terms, names, roster.links])


def keys_digest(value):
    return hashlib.sha256(canonical(value)).hexdigest()


@pytest.mark.parametrize("revoked", ["peer-1", "peer-2", "peer-3", "peer-4", "peer-5"])
def test_a_network_never_falls_apart_by_revocations(tmp_path, revoked):
    folders = Folders(tmp_path, ((0, 1), (0, 2), (0, 3), (3, 4)))
    founder = folders.network.founder
    for name in (revoked, *(other for other in sorted(folders.runs) if other != revoked)):
        founder.revoke(name)
        roster = founder.roster()
        if len(roster.revoked) < len(roster.members):
            assert len(roster.parts(without=roster.revoked)) == 1


def test_a_newer_roster_may_add_members_and_links_and_take_none_away(tmp_path):
    folders = Folders(tmp_path)
    founder, home = folders.network.founder, folders.network.homes["peer-1"]
    key, before = founder.key_path.read_bytes(), founder.roster()
    joined(folders, tmp_path, "late")
    assert home.keep_roster(founder.roster_path.read_bytes()).version == before.version + 1
    extended = founder.roster()
    without = replace(
        extended, version=9, members=extended.members[:3], links=before.links, first=0, added=()
    )
    fewer = replace(extended, version=9, links=extended.links[:-1])
    other_first = replace(extended, version=9, first=2)
    other_links = replace(extended, version=9, added=(("peer-1", "peer-2"),))
    for unrelated in (without, fewer, other_first, other_links):
        with pytest.raises(IdentityError, match="changes what was settled"):
            home.keep_roster(unrelated.signed(key))
    assert home.roster() == extended


@pytest.mark.parametrize(
    "changes", [{"first": -1}, {"first": 5}, {"added": (("peer-1", "peer-2"),)}, {"first": 2, "closed": False},
                {"first": 3, "added": (("peer-1", "peer-3"),)}],
)  # fmt: skip
def test_a_first_run_that_cannot_have_been_is_refused(tmp_path, changes):
    roster = Folders(tmp_path).network.founder.roster()
    with pytest.raises(IdentityError, match=r"first run"):
        replace(roster, **changes)


def test_a_run_keeps_its_members_and_takes_revocations_and_addresses_of_newer_rosters(tmp_path):
    folders = Folders(tmp_path)
    founder = folders.network.founder
    run = founder.roster().of_run(2)
    joined(folders, tmp_path, "late")
    request = folders.network.homes["peer-3"].request_path.read_bytes()
    founder.invite("peer-3", request, "127.0.0.1:7777", again=True)
    founder.revoke("peer-1")
    followed = run.following(founder.roster())
    assert followed.run == run.run and followed.links == run.links and followed.revoked == ("peer-1",)
    assert followed.member("peer-3").address == "127.0.0.1:7777" and not followed.has("late")
    assert followed.digest == founder.roster().digest and followed.version == founder.roster().version
    assert founder.roster().of_run(3).run != run.run  # without peer-1, with late
    assert len({founder.roster().of_run(number).run for number in (1, 2, 3)}) == 3


def test_a_new_member_needs_a_link_to_somebody_who_is_not_revoked(tmp_path):
    folders = Folders(tmp_path)
    folders.network.founder.revoke("peer-1")
    with pytest.raises(IdentityError, match="no link to a member that is not revoked"):
        joined(folders, tmp_path, "late", ["peer-1"])


def test_who_joins_later_has_no_part_in_the_first_run(tmp_path):
    folders = Folders(tmp_path)
    home = joined(folders, tmp_path, "late")
    assert home.member().name == "late"
    with pytest.raises(IdentityError, match="after its first run had begun"):
        home.load()
    assert folders.runs["late"].entry(1).state == "ended"
    folders.adopt("peer-1")
    assert folders.network.homes["peer-1"].load().roster.run == folders.network.founder.roster().run


# --- documents --------------------------------------------------------------------------------------------


def proposal_of(folders, name="peer-1", **changes):
    peer = folders.network.homes[name].member()
    usual = {
        "network": "net", "number": 2, "member": name, "at": folders.now, "terms": terms_of().to_toml(),
        "roster": peer.roster.version, "roster_digest": peer.roster.digest.hex(), "expires": folders.now + 1000.0,
    }  # fmt: skip
    return Proposal(**usual | changes)


def signed_by(folders, name, document):
    peer = folders.network.homes[name].member()
    return document.signed(peer.key, peer.certificate)


def decision_of(folders, proposal, name, **changes):
    usual = {
        "network": "net", "number": proposal.number, "member": name, "at": folders.now, "proposal": proposal.digest,
        "terms": terms_of().digest, "choice": "approve",
    }  # fmt: skip
    return Decision(**usual | changes)


def test_documents_survive_the_way_and_nothing_else_does(tmp_path):
    folders = Folders(tmp_path)
    roster, authority = folders.network.founder.roster(), folders.network.founder.authority()
    proposal = proposal_of(folders, warm_from=1)
    decision = decision_of(folders, proposal, "peer-2", reason="ü\n", by=STANDING)
    rng = random.Random(0)
    for document, name in ((proposal, "peer-1"), (decision, "peer-2")):
        signed = signed_by(folders, name, document)
        assert type(document).verified(signed, [roster], authority) == document
        for _ in range(60):
            place = rng.randrange(len(signed))
            altered = signed[:place] + bytes([signed[place] ^ (1 << rng.randrange(7))]) + signed[place + 1 :]
            with pytest.raises(IdentityError):
                type(document).verified(altered, [roster], authority)
        for other in (
            b"",
            b"{}",
            signed + b" ",
            signed[:-1],
            signed.replace(b'"content"', b'"Content"'),
            b"[" * 9999,
        ):
            with pytest.raises(IdentityError):
                type(document).verified(other, [roster], authority)


def test_another_purpose_name_or_authority_signs_nothing(tmp_path, monkeypatch):
    folders, others = Folders(tmp_path / "one"), Folders(tmp_path / "two")
    roster, authority = folders.network.founder.roster(), folders.network.founder.authority()
    proposal = proposal_of(folders)
    peer, stranger = folders.network.homes["peer-2"].member(), others.network.homes["peer-1"].member()
    with pytest.raises(IdentityError, match="peer-2 signed it"):
        Proposal.verified(proposal.signed(peer.key, peer.certificate), [roster], authority)
    with pytest.raises(IdentityError, match="another authority"):
        Proposal.verified(proposal.signed(stranger.key, stranger.certificate), [roster], authority)
    own = folders.network.homes["peer-1"].member()
    with pytest.raises(IdentityError, match="signature does not match"):
        Proposal.verified(proposal.signed(peer.key, own.certificate), [roster], authority)
    with monkeypatch.context() as patched, pytest.raises(IdentityError, match="signature does not match"):
        patched.setattr(Proposal, "PURPOSE", Decision.PURPOSE)
        mixed = proposal.signed(own.key, own.certificate)
        patched.undo()
        Proposal.verified(mixed, [roster], authority)


def test_a_certificate_that_no_roster_lists_signs_nothing(tmp_path):
    folders = Folders(tmp_path)
    founder, home = folders.network.founder, folders.network.homes["peer-1"]
    signed = signed_by(folders, "peer-1", proposal_of(folders))
    founder.invite("peer-1", home.request_path.read_bytes(), home.settings().address, again=True)
    newer, authority = founder.roster(), founder.authority()
    with pytest.raises(IdentityError, match="no roster known here lists"):
        Proposal.verified(signed, [newer], authority)
    assert Proposal.verified(signed, [newer, home.roster()], authority)


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"number": 1}, "run 1 is that of"), ({"number": 10**9}, "from 2"), ({"at": float("nan")}, "seconds since 1970"),
     ({"expires": 1.0}, "at most 90 days"), ({"expires": 3e9}, "at most 90 days"), ({"warm_from": 2}, "an earlier run"),
     ({"roster_digest": "x"}, "sha256"), ({"network": "a b"}, "network"), ({"member": "X"}, "lower-case")],
)  # fmt: skip
def test_proposals_that_make_no_sense(tmp_path, changes, says):
    with pytest.raises(IdentityError, match=says):
        proposal_of(Folders(tmp_path), **changes)


# --- all members come to the same state ----------------------------------------------------------------------


def test_a_run_that_all_approve_begins_everywhere(tmp_path):
    folders = Folders(tmp_path)
    entry = folders.runs["peer-2"].propose()
    assert (entry.number, entry.state, entry.waiting) == (2, "proposed", ("peer-1", "peer-3"))
    folders.pass_on()
    folders.runs["peer-1"].approve(2)
    folders.pass_on()
    assert set(folders.states(2).values()) == {"proposed"}
    folders.runs["peer-3"].approve(2)
    folders.pass_on()
    assert set(folders.states(2).values()) == {"approved"}
    homes = {name: runs.prepare(runs.entry(2)) for name, runs in folders.runs.items()}
    loaded = [home.load() for home in homes.values()]
    assert len({peer.roster.run for peer in loaded}) == 1 and loaded[0].terms == terms_of()


def test_documents_in_any_order_give_the_same_state(tmp_path):
    folders = Folders(tmp_path)
    folders.runs["peer-1"].propose()
    folders.runs["peer-3"].propose()  # of the same number, at the same time
    folders.pass_on()
    for name, runs in folders.runs.items():
        if name not in runs.entry(2).decisions:
            runs.approve(2, proposal=runs.entry(2).proposal.digest)
    folders.pass_on()
    documents = [path.read_bytes() for path in folders.runs["peer-1"].shared().values()]
    assert len(documents) == 6 and set(folders.states(2).values()) == {"approved"}
    expected = folders.runs["peer-1"].entry(2)
    lowest = min(Proposal.unverified(each).digest for each in documents if b'"choice"' not in each)
    assert expected.proposal.digest == lowest
    for place, order in enumerate(itertools.islice(itertools.permutations(documents), 0, 720, 60)):
        copy = tmp_path / f"copy-{place}"
        shutil.copytree(folders.network.homes["peer-2"].folder, copy)
        shutil.rmtree(copy / "runs")
        settings = copy / "peer.toml"  # of one who decides nothing: its own decisions it would miss
        settings.write_text(settings.read_text().replace('name = "peer-2"', 'name = "observer"'))
        runs = Runs(copy, lambda: folders.now)
        waiting = list(order)
        while waiting:
            rest = []
            for document in waiting:
                try:
                    runs.add(document)
                except NotYet:
                    rest.append(document)
            assert len(rest) < len(waiting)
            waiting = rest
        found = runs.entry(2)
        assert (found.state, found.proposal, found.decisions, found.others) == (
            "elsewhere", expected.proposal, expected.decisions, expected.others,
        )  # fmt: skip


def test_a_decline_and_an_expiry_end_a_proposal_with_a_sentence(tmp_path):
    folders = Folders(tmp_path)
    folders.runs["peer-1"].propose()
    folders.pass_on()
    folders.runs["peer-2"].decline(2, "the label is not ready")
    folders.pass_on()
    assert set(folders.states(2).values()) == {"declined"}
    assert folders.runs["peer-3"].entry(2).sentence == "peer-2 declined: the label is not ready"
    with pytest.raises(IdentityError, match="run 2 is declined"):
        folders.runs["peer-3"].approve(2)
    assert folders.runs["peer-1"].propose(days=2.0).number == 3
    folders.pass_on()
    folders.runs["peer-2"].approve(3)
    folders.now += 2 * 86400 + 1
    folders.pass_on()
    assert set(folders.states(3).values()) == {"expired"}
    assert "peer-3" in folders.runs["peer-1"].entry(3).sentence
    with pytest.raises(IdentityError, match="run 3 is expired"):
        folders.runs["peer-3"].approve(3)


def test_an_approval_in_time_counts_however_late_it_arrives(tmp_path):
    folders = Folders(tmp_path)
    folders.runs["peer-1"].propose(days=1.0)
    folders.pass_on()
    for name in ("peer-2", "peer-3"):
        folders.runs[name].approve(2)
    folders.now += 86401
    assert folders.states(2)["peer-1"] == "expired"
    folders.pass_on()
    assert set(folders.states(2).values()) == {"approved"}


def test_a_revoked_member_ends_what_waits_for_it_and_has_no_part_in_later_runs(tmp_path):
    folders = Folders(tmp_path)
    folders.runs["peer-1"].propose()
    folders.pass_on()
    folders.network.founder.revoke("peer-2")
    folders.adopt("peer-1", "peer-3")
    assert folders.states(2)["peer-1"] == "ended" and "revoked" in folders.runs["peer-1"].entry(2).sentence
    entry = folders.runs["peer-1"].propose()
    assert entry.participants == ("peer-1", "peer-3")
    folders.pass_on("peer-1", "peer-3")
    assert folders.runs["peer-3"].approve(3).state == "approved"  # linked in place of the revoked one


def test_nobody_decides_twice(tmp_path):
    folders = Folders(tmp_path)
    folders.runs["peer-1"].propose()
    folders.pass_on()
    folders.runs["peer-2"].approve(2)
    folders.pass_on()
    before = {path: path.read_bytes() for path in folders.runs["peer-1"].shared().values()}
    leave = f"peerbayes peer leave {folders.network.homes['peer-2'].folder} --run 2"
    for decide, says in (
        (folders.runs["peer-1"].approve, "nobody decides twice"),
        (folders.runs["peer-2"].approve, "nobody decides twice"),
        (folders.runs["peer-2"].decline, leave),
    ):
        with pytest.raises(IdentityError, match=says):
            decide(2)
    assert before == {path: path.read_bytes() for path in folders.runs["peer-1"].shared().values()}


def test_a_proposer_withdraws_what_is_still_open(tmp_path):
    folders = Folders(tmp_path)
    runs = folders.runs["peer-1"]
    runs.propose()
    folders.pass_on()
    folders.runs["peer-2"].approve(2)
    withdrawn = runs.decline(2, "the wrong columns")
    assert withdrawn.state == "declined"
    folders.pass_on()
    says = "peer-1 took its approval back: the wrong columns"
    assert {each.entry(2).sentence for each in folders.runs.values()} == {says}
    assert set(folders.states(2).values()) == {"declined"}
    with pytest.raises(IdentityError, match="has declined run 2 already"):
        runs.decline(2)
    runs.propose()
    folders.pass_on()
    for name in ("peer-2", "peer-3"):
        folders.runs[name].approve(3)
    folders.pass_on()
    with pytest.raises(IdentityError, match="nobody decides twice"):
        runs.decline(3)  # all have approved: it begins
    assert set(folders.states(3).values()) == {"approved"}


def test_a_finished_run_is_left_only_if_it_is_named(tmp_path):
    folders = Folders(tmp_path)
    home, runs = folders.network.homes["peer-1"], folders.runs["peer-1"]
    verdict = {"good": True, "sentences": ["all rounds are done"]}
    with contextlib.closing(Store(home.state_path)) as store:
        store.identity()
        store.keep("verdict", json.dumps(verdict))
    assert runs.entry(1).state == "done"
    refused = peerbayes("peer", "leave", home.folder, "--yes", code=2).stderr
    assert "run 1 has ended" in refused and f"`peerbayes peer leave {home.folder} --run 1`" in refused
    assert home.state_path.exists() and runs.entry(1).verdict == verdict
    peerbayes("peer", "leave", home.folder, "--run", 1, "--yes", code=0)
    assert not home.state_path.exists()


def test_whoever_is_told_to_leave_a_run_is_told_which(tmp_path):
    folders = Folders(tmp_path)
    runs = folders.runs["peer-1"]
    runs.propose()
    folder, home = folders.network.homes["peer-1"].folder, folders.network.homes["peer-1"].of_run(2)
    for broken, leave in (
        (home, f"`peerbayes peer leave {folder} --run 2`"),
        (folders.network.homes["peer-1"], f"`peerbayes peer leave {folder} --run 1`"),
    ):
        broken.audit_path.write_text("nothing that can be read\n")
        with pytest.raises(BrokenRecord, match=leave):
            refuse_broken(broken.state_path, broken.audit_path)
        with contextlib.closing(Store(broken.state_path)) as store:
            store.claim({"rows": ("these", "other rows")})
            with pytest.raises(PeerError, match=leave):
                store.claim({"rows": ("those", "other rows")})


def test_a_run_that_was_given_up_here_is_left_whatever_is_decided_about_it(tmp_path):
    """It is not begun here, and its approval can be taken back, so that nobody waits for it."""
    folders = Folders(tmp_path)
    runs = folders.runs["peer-1"]
    runs.propose()
    folders.pass_on()
    folders.runs["peer-2"].approve(2)
    runs.end(2, "left", "it was given up")
    assert (runs.entry(2).state, runs.entry(2).is_complete) == ("left", False)
    folders.pass_on()
    folders.runs["peer-3"].approve(2)
    folders.pass_on()
    assert folders.states(2) == {"peer-1": "left", "peer-2": "approved", "peer-3": "approved"}
    runs.decline(2, "its folder was brought back")
    folders.pass_on()
    assert folders.states(2) == {"peer-1": "left", "peer-2": "declined", "peer-3": "declined"}
    assert not runs.take_back(2, "once is enough")


# --- members that lie ------------------------------------------------------------------------------------------


def test_a_member_that_signs_two_decisions_is_named_and_its_no_counts(tmp_path):
    folders = Folders(tmp_path)
    folders.runs["peer-1"].propose()
    folders.pass_on()
    proposal = folders.runs["peer-1"].entry(2).proposal
    both = [
        signed_by(folders, "peer-3", decision_of(folders, proposal, "peer-3", choice=choice))
        for choice in ("approve", "decline")
    ]
    folders.runs["peer-2"].approve(2)
    folders.pass_on()
    folders.give("peer-1", both[0])
    folders.give("peer-2", both[1])
    assert folders.states(2) == {"peer-1": "approved", "peer-2": "declined", "peer-3": "proposed"}
    folders.pass_on()
    assert set(folders.states(2).values()) == {"declined"}
    assert all("it signed two decisions" in runs.entry(2).sentence for runs in folders.runs.values())
    third = signed_by(folders, "peer-3", decision_of(folders, proposal, "peer-3", reason="another"))
    assert folders.give("peer-1", third) is None  # two are enough
    assert len(folders.runs["peer-1"].shared()) == 5


@pytest.mark.parametrize(
    ("changes", "by", "says"),
    [
        ({"member": "peer-3"}, "peer-2", "peer-2 signed it"),
        ({"terms": "0" * 64}, "peer-2", "other terms"),
        ({"at": 1_800_001_001.0}, "peer-2", "after it had expired"),
        ({"network": "other"}, "peer-2", "takes no part"),
    ],
)
def test_decisions_that_are_refused(tmp_path, changes, by, says):
    folders = Folders(tmp_path)
    proposal = proposal_of(folders)
    assert folders.give("peer-1", signed_by(folders, "peer-1", proposal)) == proposal
    decision = (
        decision_of(folders, proposal, **{"name": by, **changes})
        if "member" not in changes
        else replace(decision_of(folders, proposal, by), **changes)
    )
    with pytest.raises(IdentityError, match=says):
        folders.runs["peer-1"].add(signed_by(folders, by, decision))
    assert not folders.runs["peer-1"].entry(2).decisions


def test_an_approval_of_another_run_or_proposal_approves_nothing(tmp_path):
    folders = Folders(tmp_path)
    first, second = proposal_of(folders), proposal_of(folders, number=3)
    for proposal in (first, second):
        folders.give("peer-1", signed_by(folders, "peer-1", proposal))
    approval = signed_by(folders, "peer-2", decision_of(folders, first, "peer-2"))
    assert folders.give("peer-1", approval)
    assert folders.runs["peer-1"].entry(3).decisions == {}
    replayed = replace(
        decision_of(folders, first, "peer-2"), number=3
    )  # signed for run 3, of the proposal of run 2
    with pytest.raises(NotYet):
        folders.runs["peer-1"].add(signed_by(folders, "peer-2", replayed))
    assert folders.runs["peer-1"].entry(3).decisions == {}


def test_who_takes_no_part_approves_nothing(tmp_path):
    folders = Folders(tmp_path)
    proposal = proposal_of(folders)
    folders.give("peer-1", signed_by(folders, "peer-1", proposal))
    joined(folders, tmp_path, "late")
    folders.adopt("peer-1")
    with pytest.raises(IdentityError, match="late takes no part in run 2"):
        folders.runs["peer-1"].add(signed_by(folders, "late", decision_of(folders, proposal, "late")))
    own = replace(proposal_of(folders, "late"), roster=proposal.roster, roster_digest=proposal.roster_digest)
    with pytest.raises(IdentityError, match="takes no part in the run that it proposes"):
        folders.runs["peer-1"].add(signed_by(folders, "late", own))
    with pytest.raises(IdentityError, match="does not take part"):
        folders.give("late", signed_by(folders, "peer-1", proposal), "peer-1")
        folders.runs["late"].approve(2)


def test_a_run_of_those_who_were_there_before_stands_in_nobodys_way(tmp_path):
    """Who joins between a proposal and its last approval has no part in that run, and may propose the next one."""
    folders = Folders(tmp_path)
    folders.runs["peer-2"].propose()
    folders.pass_on()
    joined(folders, tmp_path, "late")
    folders.adopt()
    folders.pass_on()
    assert folders.runs["late"].entry(2).state == "proposed"
    for name in ("peer-1", "peer-3"):
        folders.runs[name].approve(2)
    folders.pass_on()
    entry = folders.runs["late"].entry(2)
    assert entry.state == "elsewhere" and "before late joined" in entry.sentence and entry.is_complete
    folders.now += BEGINS + 8 * 86400.0
    assert folders.runs["late"].entry(2).state == "elsewhere"
    after = folders.runs["late"].propose()
    assert after.number == 3 and set(after.participants) == {"peer-1", "peer-2", "peer-3", "late"}
    assert after.terms == terms_of()


def test_floods_and_large_documents_are_refused(tmp_path):
    folders = Folders(tmp_path)
    runs = folders.runs["peer-1"]
    with pytest.raises(IdentityError, match="bytes; expected at most"):
        runs.add(b"x" * (2 << 20))
    with pytest.raises(IdentityError, match="shorten its texts"):
        signed_by(folders, "peer-2", proposal_of(folders, "peer-2", terms="#" * (1 << 20)))
    with pytest.raises(IdentityError, match="500"):
        decision_of(folders, proposal_of(folders), "peer-2", reason="x" * 501)
    assert LARGEST_DECISION < 64 << 10
    with pytest.raises(NotYet):
        runs.add(signed_by(folders, "peer-2", proposal_of(folders, "peer-2", number=500)))
    with pytest.raises(IdentityError, match="are the clocks right"):
        late = folders.now + 10 * 86400
        runs.add(signed_by(folders, "peer-2", proposal_of(folders, "peer-2", at=late, expires=late + 1.0)))
    for place in range(OF_ONE):
        assert runs.add(signed_by(folders, "peer-2", proposal_of(folders, "peer-2", at=folders.now + place)))
    with pytest.raises(IdentityError, match=f"has proposed run 2 {OF_ONE} times"):
        runs.add(signed_by(folders, "peer-2", proposal_of(folders, "peer-2", at=folders.now + 99)))
    for number in range(3, 3 + OPEN_OF_ONE - OF_ONE):
        assert runs.add(signed_by(folders, "peer-2", proposal_of(folders, "peer-2", number=number)))
    with pytest.raises(IdentityError, match="wait for approvals already"):
        runs.add(signed_by(folders, "peer-2", proposal_of(folders, "peer-2", number=7)))


def test_a_proposal_names_a_roster_of_the_authority(tmp_path):
    folders, others = Folders(tmp_path / "one"), Folders(tmp_path / "two")
    runs = folders.runs["peer-1"]
    foreign = others.network.founder.roster_path.read_bytes()
    with pytest.raises(IdentityError):
        runs.keep_named_roster(foreign, others.network.founder.roster().digest.hex())
    wrong_version = proposal_of(folders, "peer-2", roster=1)
    with pytest.raises(IdentityError, match="names roster 1"):
        runs.add(signed_by(folders, "peer-2", wrong_version))
    own = folders.network.founder.roster_path.read_bytes()
    with pytest.raises(IdentityError, match="came instead of"):
        runs.keep_named_roster(own, "0" * 64)


def test_a_revoked_member_proposes_nothing_and_what_it_had_proposed_ends(tmp_path):
    folders = Folders(tmp_path, ((0, 1), (1, 2), (0, 2)))
    before = folders.network.homes["peer-3"].member().roster
    early = proposal_of(folders, "peer-3")
    assert folders.give("peer-1", signed_by(folders, "peer-3", early)) == early
    folders.give("peer-1", signed_by(folders, "peer-3", decision_of(folders, early, "peer-3")))
    folders.network.founder.revoke("peer-3")
    folders.adopt("peer-1")
    assert folders.runs["peer-1"].entry(2).state == "ended"
    assert "peer-3 was revoked" in folders.runs["peer-1"].entry(2).sentence
    # It names the roster of which it was a member, which everybody has.
    late = proposal_of(folders, "peer-3", number=3, roster=before.version, roster_digest=before.digest.hex())
    with pytest.raises(IdentityError, match="peer-3 was revoked, and proposes run 3"):
        folders.runs["peer-1"].add(signed_by(folders, "peer-3", late))
    assert folders.runs["peer-1"].home.run_numbers() == [1, 2]


def test_an_approval_that_was_held_back_begins_nothing(tmp_path):
    folders = Folders(tmp_path)
    folders.runs["peer-1"].propose(days=1.0)
    folders.pass_on()
    for name in ("peer-2", "peer-3"):
        folders.runs[name].approve(2)  # in time, as it says itself
    folders.now += 86400 + BEGINS - 10
    folders.pass_on("peer-1", "peer-2", "peer-3")
    assert set(folders.states(2).values()) == {"approved"}
    folders.now += 20
    assert set(folders.states(2).values()) == {"expired"}
    assert "did not begin in time" in folders.runs["peer-2"].entry(2).sentence


def two_proposals(folders):
    """Proposals of the same number by two members, the one that goes on first; both are at peer-1."""
    both = [proposal_of(folders, name, expires=folders.now + 999.0) for name in ("peer-2", "peer-3")]
    for proposal in both:
        folders.give("peer-1", signed_by(folders, proposal.member, proposal))
    return sorted(both, key=lambda proposal: proposal.digest)


def test_nobody_approves_a_proposal_that_came_after_another_was_read(tmp_path):
    folders = Folders(tmp_path)
    first, other = two_proposals(folders)
    runs = folders.runs["peer-1"]
    with pytest.raises(IdentityError, match=f"--proposal {first.digest:.16}"):
        runs.approve(2)
    for said in (other.digest, first.digest[:7], "", "0" * 64):
        with pytest.raises(IdentityError, match="not the one of run 2 that goes on"):
            runs.approve(2, proposal=said)
    assert runs.entry(2).decisions == {}
    assert runs.approve(2, proposal=first.digest[:8]).decisions["peer-1"].proposal == first.digest


def test_a_proposal_that_its_own_member_declined_stands_in_nobodys_way(tmp_path):
    folders = Folders(tmp_path)
    first, other = two_proposals(folders)
    own = decision_of(folders, first, first.member, choice="decline")
    folders.give("peer-1", signed_by(folders, first.member, own))
    runs = folders.runs["peer-1"]
    assert runs.entry(2).proposal == other and runs.entry(2).state == "proposed"
    assert runs.approve(2, proposal=other.digest).decisions["peer-1"].proposal == other.digest


def test_a_run_that_has_begun_is_the_run_whatever_else_is_approved_later(tmp_path):
    folders = Folders(tmp_path)
    first, other = two_proposals(folders)
    runs = folders.runs["peer-1"]
    for proposal in (other, first):
        for name in folders.runs:
            folders.give("peer-1", signed_by(folders, name, decision_of(folders, proposal, name)))
        if proposal is other:
            runs.prepare(runs.entry(2))
    assert runs.entry(2).proposal == other and runs.entry(2).others == (first.digest,)


def test_a_member_cannot_use_up_the_numbers_with_proposals_that_have_expired(tmp_path):
    folders = Folders(tmp_path)
    runs = folders.runs["peer-1"]
    for number in range(2, 2 + OF_WINDOW):
        old = proposal_of(folders, "peer-2", number=number, at=folders.now - 99.0, expires=folders.now - 9.0)
        assert runs.add(signed_by(folders, "peer-2", old)) == old
    last = 2 + OF_WINDOW
    with pytest.raises(IdentityError, match="were not approved by all"):
        runs.add(signed_by(folders, "peer-2", proposal_of(folders, "peer-2", number=last)))
    far = proposal_of(folders, "peer-3", number=last + 1)
    with pytest.raises(NotYet):
        runs.add(signed_by(folders, "peer-3", far))
    assert runs.propose().number == last  # another member


@pytest.mark.parametrize("terms", ["a = " + "[" * 50_000, "label = 1", "\0", 'network = "net"\n' * 20_000])
def test_terms_that_cannot_be_read_are_listed_and_nobody_approves_them(tmp_path, terms):
    folders = Folders(tmp_path)
    folders.give("peer-1", signed_by(folders, "peer-2", proposal_of(folders, "peer-2", terms=terms)))
    entry = folders.runs["peer-1"].entry(2)
    assert entry.state == "proposed" and entry.terms is None and entry.sentence
    with pytest.raises(TermsError):
        folders.runs["peer-1"].approve(2)
    assert folders.runs["peer-1"].decline(2).state == "declined"


# --- what an owner allows -----------------------------------------------------------------------------------------


CONSENT = 'label = "y"\ncolumns = ["a", "b", "c"]\n'
NAMED = {"features": {"a": "continuous", "b": "continuous"}}


def consented(folders, name, text):
    (folders.network.homes[name].folder / "consent.toml").write_text(text)
    folders.pass_on()
    return folders.runs[name].obstacles(folders.runs[name].entry(2))


@pytest.mark.parametrize(
    ("limits", "terms", "says"),
    [
        ("", NAMED, None),
        (
            'families = ["naive-bayes"]\nstrategies = ["exact"]\nrounds = 12\nproposers = ["peer-1"]\n',
            NAMED,
            None,
        ),
        ("", {}, "all columns"),
        ("", {"features": {"a": "auto", "z": "auto"}}, "the column 'z'"),
        ('families = ["tan"]\n', NAMED, "family is 'naive-bayes'"),
        ('strategies = ["crc"]\n', NAMED, "strategy is 'exact'"),
        ('proposers = ["peer-3"]\n', NAMED, "proposer is 'peer-1'"),
        ("rounds = 11\n", NAMED, "12 rounds"),
        ("epsilon = 1.0\n", NAMED, "no epsilon"),
        ("", NAMED | {"evaluation": "sites"}, "evaluation is 'sites', the consent is for 'none'"),
        ('evaluation = "sites"\n', NAMED | {"evaluation": "sites"}, None),
        ("", NAMED | {"figures": "warn"}, "figures is 'warn', the consent is for 'none'"),
        ('figures = "warn"\n', NAMED | {"figures": "stop"}, "figures is 'stop', the consent is for 'warn'"),
        ('figures = "stop"\n', NAMED | {"figures": "warn"}, None),
        (
            'members = ["peer-1", "peer-2"]\n',
            NAMED,
            "peer-3 would take part, and the consent is for peer-1, peer-2",
        ),
        ('members = ["peer-1", "peer-2", "peer-3", "peer-9"]\n', NAMED, None),
        ('members = ["*"]\n', NAMED, None),
        ("epsilon_in_all = 1.0\n", NAMED, "no epsilon"),
    ],
)
def test_a_standing_consent_covers_what_keeps_its_limits(tmp_path, limits, terms, says):
    folders = Folders(tmp_path)
    folders.runs["peer-1"].propose(terms_of(**terms).to_toml())
    obstacles = consented(folders, "peer-2", CONSENT + limits)
    assert obstacles == [] if says is None else len(obstacles) == 1 and says in obstacles[0]


PRIVATE = {
    "features": {"a": "continuous", "b": "continuous"},
    "facts": {"a": Facts(0.5, 1.0), "b": Facts(0.5, 1.0)},
    "classes": ("no", "yes"),
}


def private_run(epsilon=1.0, **privacy):
    return terms_of(**PRIVATE, privacy=Privacy(epsilon=epsilon, rows=40.0, min_rows=20, **privacy))


@pytest.mark.parametrize(
    ("limits", "epsilon", "says"),
    [
        ("epsilon = 1.0\n", 1.0, None),
        ("epsilon = 1.0\n", 1.01, "the run has epsilon 1.01, the consent is for at most 1"),
        ("epsilon_in_all = 1.2\n", 1.0, None),
        ("epsilon_in_all = 0.9\n", 1.0, "epsilon 1 with all other runs, the consent is for 0.9 in all"),
    ],
)
def test_a_consent_limits_epsilon_of_a_private_run(tmp_path, limits, epsilon, says):
    folders = Folders(tmp_path)
    folders.runs["peer-1"].propose(private_run(epsilon).to_toml())
    obstacles = consented(folders, "peer-2", CONSENT + limits)
    assert obstacles == [] if says is None else len(obstacles) == 1 and says in obstacles[0]


def test_a_consent_limits_epsilon_of_all_runs_together(tmp_path):
    """Two runs of 1 are 1.44 together: composed as noise is, and more than 1.2, though each is less."""
    folders = Folders(tmp_path)
    runs = folders.runs["peer-2"]
    folders.runs["peer-1"].propose(private_run().to_toml())
    assert consented(folders, "peer-2", CONSENT + "epsilon_in_all = 1.2\n") == []
    runs.approve(2, STANDING)
    folders.runs["peer-1"].propose(private_run().to_toml())
    folders.pass_on()
    (obstacle,) = runs.obstacles(runs.entry(3))
    assert "with all other runs, the consent is for 1.2 in all" in obstacle
    runs.end(2, "left", "given up before it released anything")
    assert runs.obstacles(runs.entry(3)) == []


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({}, None),
        ({"epsilon": 0.5}, None),
        ({"epsilon": 1.5}, "epsilon is 1.5, and was 1.0 in the last run that the owner approved"),
        ({"delta": 1e-3}, "delta is 0.001, and was 1e-05"),
        (None, "epsilon is None, and was 1.0"),
    ],
)
def test_no_consent_covers_less_protection_than_its_owner_approved(tmp_path, more, says):
    folders = Folders(tmp_path)
    folders.runs["peer-1"].propose(private_run().to_toml())
    folders.pass_on()
    runs = folders.runs["peer-2"]
    runs.approve(2)
    runs.end(2, "left", "given up")
    terms = terms_of(**NAMED) if more is None else private_run(**more)
    folders.runs["peer-1"].propose(terms.to_toml())
    (folders.network.homes["peer-2"].folder / "consent.toml").write_text(CONSENT)
    folders.pass_on()
    obstacles = runs.obstacles(runs.entry(3))
    assert obstacles == [] if says is None else says in obstacles[0]


def test_a_consent_covers_no_member_whom_its_owner_has_not_seen(tmp_path):
    """Whoever joins since waits for the owner, once; whoever is gone is no reason to."""
    folders = Folders(tmp_path)
    joined(folders, tmp_path, "late")
    folders.adopt()
    folders.runs["peer-1"].propose(terms_of(**NAMED).to_toml())
    (obstacle,) = consented(folders, "peer-2", CONSENT)
    assert obstacle == "late would take part, and the consent is for peer-1, peer-2, peer-3"
    of_late = consented(folders, "late", CONSENT)
    assert "the consent is for nobody" in of_late[0]
    folders.runs["peer-2"].approve(2)
    folders.network.founder.revoke("peer-3")
    folders.adopt("peer-1", "peer-2", "late")
    folders.now += 1.0
    folders.runs["peer-1"].propose(terms_of(**NAMED).to_toml())
    folders.pass_on("peer-1", "peer-2", "late")
    runs = folders.runs["peer-2"]
    assert runs.entry(3).participants == ("peer-1", "peer-2", "late") and runs.obstacles(runs.entry(3)) == []


@pytest.mark.parametrize(
    ("required", "terms"),
    [('evaluation = "none"', {"evaluation": "sites"}), ('figures = "warn"', {"figures": "stop"})],
)
def test_an_owner_may_require_that_less_is_told(tmp_path, required, terms):
    folders = Folders(tmp_path)
    home = folders.network.homes["peer-2"]
    home.settings_path.write_text(home.settings_path.read_text() + f"\n[require]\n{required}\n")
    folders.runs["peer-1"].propose(terms_of(**NAMED, **terms).to_toml())
    folders.pass_on()
    with pytest.raises(TermsError, match=f"requires {required}"):
        folders.runs["peer-2"].approve(2)


def test_a_consent_says_how_often(tmp_path):
    folders = Folders(tmp_path)
    folders.runs["peer-1"].propose(terms_of(**NAMED).to_toml())
    assert consented(folders, "peer-2", CONSENT + "hours = 20\n") == []
    folders.runs["peer-2"].approve(2, STANDING)
    folders.now += 3600.0
    folders.runs["peer-1"].propose(terms_of(**NAMED).to_toml())
    folders.pass_on()
    runs = folders.runs["peer-2"]
    assert "1.0 h ago" in runs.obstacles(runs.entry(3))[0]
    folders.now += 20 * 3600.0
    assert runs.obstacles(runs.entry(3)) == []


@pytest.mark.parametrize(
    "text", ['label = "y"\n', CONSENT + "colums = []\n", CONSENT + "rounds = 0\n", "label = 1\n"]
)
def test_a_consent_that_cannot_be_read_covers_nothing_and_says_so(tmp_path, text):
    folders = Folders(tmp_path)
    folders.runs["peer-1"].propose(terms_of(**NAMED).to_toml())
    with pytest.raises(ConfigurationError, match=r"consent\.toml"):
        consented(folders, "peer-2", text)


def test_requirements_come_before_any_approval(tmp_path):
    folders = Folders(tmp_path)
    home = folders.network.homes["peer-2"]
    folders.runs["peer-1"].propose(terms_of(**NAMED).to_toml())
    home.settings_path.write_text(home.settings_path.read_text() + "\n[require]\nmin_rows = 1\n")
    folders.pass_on()
    assert consented(folders, "peer-2", CONSENT) == []
    home.settings_path.write_text(home.settings_path.read_text().replace("min_rows = 1", "secure_sum = true"))
    assert "secure_sum" in consented(folders, "peer-2", CONSENT)[0]
    with pytest.raises(TermsError, match="secure_sum"):
        folders.runs["peer-2"].approve(2)
    assert not list((home.folder / "runs/2/decisions").glob("*peer-2*"))


# --- commands -------------------------------------------------------------------------------------------------------


def test_the_commands_propose_approve_decline_list_and_show(tmp_path):
    folders = Folders(tmp_path)
    home, other = (folders.network.homes[name].folder for name in ("peer-1", "peer-2"))
    for name in folders.runs:
        folders.runs[name] = type(folders.runs[name])(folders.network.homes[name].folder)
    agreement = tmp_path / "next.toml"
    agreement.write_text(terms_of(rounds=7).to_toml())
    done = peerbayes("run", "propose", "--folder", home, "--terms", agreement, code=0)
    assert "Run 2 is proposed, and approved here" in done.stdout
    folders.pass_on()
    shown = peerbayes("run", "show", 2, "--folder", other, code=0).stdout
    assert "waits for peer-2, peer-3" in shown and "no standing consent" in shown and "rounds = 7" in shown
    assert peerbayes("run", "approve", 2, "--folder", other, code=0).stdout.startswith(
        "Run 2 is approved here"
    )
    assert "nobody decides twice" in peerbayes("run", "approve", 2, "--folder", other, code=2).stderr
    second = peerbayes("run", "propose", "--folder", home, code=0)
    assert "run 2 is open as well, proposed by peer-1" in second.stderr
    assert peerbayes("run", "decline", 3, "--folder", home, code=0).stdout.startswith(
        "Run 3 is declined here: declined. peer-1 took its approval back"
    )
    assert not (folders.network.homes["peer-1"].folder / "runs/3/state.sqlite").exists()
    shutil.rmtree(home / "runs/3")
    folders.pass_on()
    third = folders.network.homes["peer-3"].folder
    peerbayes("run", "decline", 2, "--folder", third, "--reason", "no", code=0)
    table = peerbayes("run", "list", "--folder", third, code=0).stdout
    assert "declined" in table and "the founder" in table
    listed = json.loads(peerbayes("run", "list", "--folder", third, "--format", "json", code=0).stdout)
    assert [run["state"] for run in listed] == ["approved", "declined"]
    assert listed[1]["decisions"]["peer-3"]["reason"] == "no"
    shown = json.loads(peerbayes("run", "show", 2, "--folder", third, "--format", "json", code=0).stdout)
    assert shown["agreement"] == terms_of(rounds=7).to_toml()
    assert "there is no run 5" in peerbayes("run", "show", 5, "--folder", third, code=2).stderr
    assert "peer request" in peerbayes("run", "list", "--folder", tmp_path, code=2).stderr


def test_commands_say_what_differs_from_the_last_run_and_that_nobody_hears_of_it(tmp_path):
    folders = Folders(tmp_path)
    home = folders.network.homes["peer-1"]
    agreement = tmp_path / "next.toml"
    agreement.write_text(terms_of(rounds=7, evaluation="sites").to_toml())
    told = peerbayes("run", "propose", "--folder", home.folder, "--terms", agreement, code=0).stdout
    assert f"process is not running: start it with `peerbayes peer serve {home.folder}`" in " ".join(
        told.split()
    )
    assert "passes it on" not in told and "has no hold_out" in told
    shown = peerbayes("run", "show", 2, "--folder", home.folder, code=0).stdout
    head, _, terms = shown.partition("# What the members of this network agreed on")
    assert "differ from those of run 1" in head and "rounds: 12 against 7" in head and "rounds = 7" in terms
    assert "evaluation: none against sites" in head and "strategy" not in head
    plain = json.loads(
        peerbayes("run", "show", 2, "--folder", home.folder, "--format", "json", code=0).stdout
    )
    assert plain["differences"] == ["rounds: 12 against 7", "evaluation: none against sites"]
    assert "its terms" not in peerbayes("run", "show", 1, "--folder", home.folder, code=0).stdout
    text = home.settings_path.read_text()
    home.settings_path.write_text(f"hold_out = 0.2\n{text.replace('hold_out', '# hold_out')}")
    home.of_run(2).records.joinpath("decisions").rename(tmp_path / "decisions")
    with lock(home):
        told = peerbayes("run", "approve", 2, "--folder", home.folder, code=0).stdout
    assert "passes it on" in told and "is not running" not in told and "hold_out" not in told


def test_the_terms_of_a_run_are_compared_with_those_of_the_last_that_all_approved(tmp_path):
    folders = Folders(tmp_path)
    runs = folders.runs["peer-1"]
    assert runs.before(1) is None
    runs.propose(terms_of(rounds=7).to_toml())
    folders.pass_on()
    folders.runs["peer-2"].decline(2)
    folders.pass_on()
    for number, rounds in ((3, 8), (4, 9)):
        folders.now += 1.0
        runs.propose(terms_of(rounds=rounds).to_toml())
        folders.pass_on()
        for name in ("peer-2", "peer-3"):
            folders.runs[name].approve(number)
        folders.pass_on()
    assert [runs.before(number).number for number in (2, 3, 4)] == [1, 1, 3]


def test_the_run_that_began_last_is_shown_unasked_and_no_later_model_beside_an_earlier_run(tmp_path):
    folders = Folders(tmp_path)
    runs, home = folders.runs["peer-1"], folders.network.homes["peer-1"]
    runs.propose(terms_of(rounds=7).to_toml())
    folders.pass_on()
    for name in ("peer-2", "peer-3"):
        folders.runs[name].approve(2)
    folders.pass_on()
    Store(home.state_path).close()
    home.model_path.write_bytes(b"the model in use")
    assert home.shown_run() == home and status(home)["model"] == str(home.model_path)  # run 2 has not begun
    second = runs.prepare(runs.entry(2))
    Store(second.state_path).close()
    assert home.shown_run() == second and home.shown_run(1) == home and second.run_number == 2
    said = json.loads(peerbayes("peer", "status", home.folder, "--format", "json", code=0).stdout)
    assert (said["run"], said["rounds"], said["model"]) == (2, 7, None)
    assert ", run 2: not running, round 0 of 7" in peerbayes("peer", "status", home.folder, code=0).stdout
    first = json.loads(
        peerbayes("peer", "status", home.folder, "--run", 1, "--format", "json", code=0).stdout
    )
    assert (first["run"], first["rounds"], first["model"]) == (1, 12, None)
    facts = {"network": "net", "rounds": 12, "data": "d", "terms": "t"}
    History(home.folder).record(run=home.load().roster.run, **facts)
    assert status(home)["model"] == str(History(home.folder).path(1))
    assert ", run 2: the data of all sites" in peerbayes("peer", "figures", home.folder, code=0).stdout
    figures = json.loads(
        peerbayes("peer", "figures", home.folder, "--run", 1, "--format", "json", code=0).stdout
    )
    assert figures["run"] == 1


def test_status_and_check_warn_of_files_that_cannot_be_used_and_of_rows_that_nobody_is_tested_on(tmp_path):
    folders = Folders(tmp_path, evaluation="sites")
    home = folders.network.homes["peer-1"]
    (untested,) = [text for text in warnings_of(home, home.load()) if "hold_out" in text]
    assert "nothing will be known of the model's errors here" in untested
    (home.folder / "consent.toml").write_text('label = "y"\n')
    (home.folder / "schedule.toml").write_text('every = "now and then"\n')
    home.settings_path.write_text(f'share_figures = "none"\n{home.settings_path.read_text()}')
    found = json.loads(peerbayes("peer", "check", home.folder, "--format", "json").stdout)
    told = [finding["told"] for finding in found if finding["what"] == "folder"]
    assert any(text.startswith("consent.toml cannot be used: ") and "columns" in text for text in told), told
    assert any(text.startswith("schedule.toml cannot be used: ") and "every" in text for text in told), told
    assert not any("hold_out" in text for text in told)  # its owner shares nothing, on purpose


def test_terms_that_could_not_run_are_not_proposed(tmp_path):
    folders = Folders(tmp_path)
    runs = folders.runs["peer-1"]
    for text, error, says in (
        ("label = 1", TermsError, "label"),
        (terms_of().to_toml().replace('"net"', '"other"'), TermsError, "expected 'net'"),
        (
            terms_of().to_toml().replace("message_bytes = 67108864", "message_bytes = 67108865"),
            TermsError,
            "at most",
        ),
    ):
        with pytest.raises(error, match=says):
            runs.propose(text)
    with pytest.raises(TermsError, match="no run yet"):
        runs.propose(warm=True)
    secure = proposal_of(folders, "peer-2", terms=terms_of(robust=Robust("clip")).to_toml(), warm_from=1)
    folders.give("peer-1", signed_by(folders, "peer-2", secure))
    with pytest.raises(TermsError, match="robust terms begins afresh"):
        runs.approve(2)
    shutil.rmtree(runs.path)
    assert runs.home.run_numbers() == [1]


def test_an_open_network_has_no_runs_to_propose(tmp_path):
    folders = Folders(tmp_path)
    founder = folders.network.founder
    opened = replace(founder.roster(), version=99, closed=False)
    home = folders.network.homes["peer-1"]
    home.roster_path.write_bytes(opened.signed(founder.key_path.read_bytes()))
    with pytest.raises(IdentityError, match="still open"):
        folders.runs["peer-1"].propose()
