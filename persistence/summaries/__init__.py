"""What a catalog shows of every Session, without reading a log that did not change."""

from persistence.summaries.cache import Count, SessionSummaries, SummaryPage
from persistence.summaries.fold import ReadError, SessionSummary
from persistence.summaries.scan import Refreshed

__all__ = ["Count", "ReadError", "Refreshed", "SessionSummaries", "SessionSummary", "SummaryPage"]
