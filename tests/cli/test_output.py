"""What ends while a command writes its results."""

from __future__ import annotations

from threading import Event, Thread

from mgspmv.cli.output import await_ends, end_meanwhile


def test_a_command_ends_after_what_it_used():
    may_end, ended = Event(), []

    def end() -> None:
        may_end.wait()
        ended.append(True)

    end_meanwhile(end)
    waiting = Thread(target=await_ends)
    waiting.start()
    assert waiting.is_alive()
    assert not ended
    may_end.set()
    waiting.join()
    assert ended == [True]
    await_ends()
