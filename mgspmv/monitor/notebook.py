"""Bars below the cell of a notebook, without widgets, so that every notebook that shows HTML has them."""

from __future__ import annotations

import io
import time
from typing import Any

from rich.console import Console
from rich.progress import Progress, TaskID

REFRESH_S = 0.2
"""Least seconds between two pictures of the bars."""
COLUMNS = 110
FORMAT = '<pre style="margin: 0; white-space: pre; overflow-x: auto; line-height: 1.4; color: inherit">{code}</pre>'


class NotebookBars(Progress):
    """Rich's bars, of which a cell's output shows a picture whenever they change; nothing of it stays.

    Rich's own way takes `ipywidgets`, which not every notebook has.
    """

    def __init__(self, *columns: Any) -> None:
        super().__init__(*columns, console=Console(file=io.StringIO(), force_jupyter=False), auto_refresh=False)
        self._handle: Any = None
        self._drawn_s = 0.0

    def start(self) -> None:
        """Put a place for the bars below the cell."""
        from IPython.display import HTML, display

        self._handle = display(HTML(""), display_id=True)  # type: ignore[no-untyped-call]

    def stop(self) -> None:
        """Empty it, but for what was said of steps that failed."""
        self._draw(is_last=True)

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """As of Rich's bars, and draw them."""
        super().update(task_id, **changes)
        self.refresh()

    def refresh(self) -> None:
        """Draw the bars, unless they were a moment ago."""
        if self._handle is not None and time.monotonic() - self._drawn_s >= REFRESH_S:
            self._draw()

    def _draw(self, *, is_last: bool = False) -> None:
        from IPython.display import HTML

        self._drawn_s = time.monotonic()
        canvas = Console(
            file=io.StringIO(), record=True, width=COLUMNS, force_terminal=True, force_jupyter=False,
            color_system="truecolor", legacy_windows=False,
        )  # fmt: skip
        said = self._read_said()
        if said:
            canvas.print(said, markup=False, highlight=False, soft_wrap=True)
        if not is_last:
            canvas.print(self.get_renderable())
        html = canvas.export_html(inline_styles=True, code_format=FORMAT)
        self._handle.update(HTML(html if said or not is_last else ""))  # type: ignore[no-untyped-call]

    def _read_said(self) -> str:
        """What was printed above the bars."""
        file = self.console.file
        assert isinstance(file, io.StringIO)
        return file.getvalue().rstrip()
