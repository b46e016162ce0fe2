"""A process of Flower's whose parent was killed must end, or it would hold a run that is to go on elsewhere."""

from __future__ import annotations

import os
import threading
import time

GRACE = 10.0  # seconds in which Flower may end it in its own way, which can come to a standstill


def end_when_orphaned(grace: float = GRACE) -> None:
    """End this process without a word once its parent is gone. What it writes is there whole or not at all."""
    threading.Thread(target=_watch, args=(os.getppid(), grace), daemon=True).start()


def _watch(parent: int, grace: float) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    time.sleep(grace)
    os._exit(1)
