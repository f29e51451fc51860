"""What keeps a report from being made.

PeerbayesError
└── ReportError
    ├── PlotlyMissing    (also an ImportError) plotly is not installed
    └── DrawingFailed    kaleido, or the browser that it draws with, is missing or gave up
"""

from __future__ import annotations

from peerbayes.errors import PeerbayesError


class ReportError(PeerbayesError):
    """The root of what keeps a report from being made."""


class PlotlyMissing(ReportError, ImportError):
    """The package that carries plotly.js is not installed."""


class DrawingFailed(ReportError):
    """Files for papers need kaleido and a browser."""
