"""Messages out, replies in, for so long and no longer."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0  # seconds between two looks for replies


def exchange(
    grid: Grid, kind: str, contents: Mapping[int, RecordDict], seconds: float, group: str = ""
) -> Iterator[Message]:
    """Send each node its content; gives replies as they come. What was not answered in time is never delivered."""
    messages = [Message(content, node, kind, ttl=seconds, group_id=group) for node, content in contents.items()]
    end, pause = time.monotonic() + seconds, FIRST_PAUSE
    pending = {name for name in grid.push_messages(messages) if name}
    while pending and time.monotonic() < end:
        replies = list(grid.pull_messages(pending))
        pending -= {reply.metadata.reply_to_message_id for reply in replies}
        yield from replies
        if pending:
            time.sleep(min(pause, max(0.0, end - time.monotonic())))
            pause = min(pause * 1.2, LONGEST_PAUSE)
