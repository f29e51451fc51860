"""Runs of one membership: proposals, approvals, standing consents and schedules."""

from peerbayes.peer.runs.book import RunEntry, Runs

__all__ = ["RunEntry", "Runs"]
