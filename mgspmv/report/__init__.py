"""What a pipeline did: records of its steps, and a page that shows them."""

from mgspmv.report.load import load_run
from mgspmv.report.page import render_report

__all__ = ["load_run", "render_report"]
