"""Records of the steps of a pipeline, and a page that shows them."""

from mgspmv.report.load import load_run
from mgspmv.report.page import render_report

__all__ = ["load_run", "render_report"]
