"""Records of the steps of a pipeline, and a page that shows them."""

from mgspmv.report.page import render_report
from mgspmv.report.record import load_run

__all__ = ["load_run", "render_report"]
