"""Errors of reports.

PeerbayesError
└── ReportError
    ├── PlotlyMissing    (also an ImportError) plotly is not installed
    └── DrawingFailed    kaleido, or the browser that it draws with, is missing or failed
"""

from __future__ import annotations

from peerbayes.errors import PeerbayesError


class ReportError(PeerbayesError):
    """Base class: a report cannot be written."""


class PlotlyMissing(ReportError, ImportError):
    """plotly, the package that contains plotly.js, is not installed."""


class DrawingFailed(ReportError):
    """An image file could not be drawn: this needs kaleido and a browser."""
