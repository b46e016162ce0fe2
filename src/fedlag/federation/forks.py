"""Work shared out to forks of this process, which see everything as it stands at that moment."""

from __future__ import annotations

import io
import os
import pickle
import signal
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn, TypeVar, cast

import torch
from torch import Tensor

T = TypeVar("T")

PLACE = 8  # bytes of a place in the list of items


def forked(work: Callable[[int], T], items: Sequence[int], processes: int) -> Generator[tuple[int, T], None, None]:
    """(item, what `work` makes of it), as they come; a free process takes the next item.

    Nothing is sent to a fork, and nothing stays there: what is to last must come back. Its exceptions are raised here.
    """
    turn = os.pipe()  # holds the next item's place: whoever reads it has the turn, and puts back the next
    os.write(turn[1], bytes(PLACE))
    children: dict[Connection, int] = {}
    try:
        for _ in range(min(processes, len(items))):
            here, there = Pipe(duplex=False)
            pid = _fork()
            if not pid:
                for connection in (here, *children):
                    connection.close()
                _serve(work, items, turn, there)
            there.close()
            children[here] = pid
        while children:
            for here in cast(list[Connection], wait(list(children))):
                yield from _received(here, items, children)
    finally:
        for end in turn:
            os.close(end)
        for here, pid in children.items():
            here.close()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _fork() -> int:
    """Without Python's warning of locks that other threads may hold: a fork of ours asks for none of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _serve(work: Callable[[int], T], items: Sequence[int], turn: tuple[int, int], there: Connection) -> NoReturn:
    """In the fork: take items until there are none, and end without a word to anything that was copied along."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # who forked decides
        torch.set_num_threads(1)
        while (place := _next(turn)) < len(items):
            there.send_bytes(_answer(work, items[place]))
        code = 0
    except BrokenPipeError:
        code = 0  # nobody is listening any more
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _answer(work: Callable[[int], T], item: int) -> memoryview:
    try:
        return _packed((item, work(item), None))
    except Exception as error:
        return _packed_error(error)


def _next(turn: tuple[int, int]) -> int:
    place = int.from_bytes(os.read(turn[0], PLACE))
    os.write(turn[1], (place + 1).to_bytes(PLACE))
    return place


def _received(here: Connection, items: Sequence[int], children: dict[Connection, int]) -> Iterator[tuple[int, Any]]:
    try:
        item, done, error = pickle.loads(here.recv_bytes())  # written by a fork of this very process
    except EOFError:
        here.close()
        _, status = os.waitpid(children.pop(here), 0)
        if status:
            raise RuntimeError(
                f"A process that trains clients was ended ({_ending(status)}); if memory is short, "
                "--workers 1 or federation = 'sequential' takes less."
            ) from None
        return
    if error is not None:
        raise error
    yield item, done


def _ending(status: int) -> str:
    return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit code {os.WEXITSTATUS(status)}"


class _Packer(pickle.Pickler):
    """Tensors as their numbers; PyTorch's own way writes an archive for each."""

    def reducer_override(self, value: Any) -> Any:
        plain = type(value) is Tensor and not value.requires_grad and value.is_contiguous()
        return (torch.from_numpy, (value.numpy(),)) if plain and value.dtype != torch.bfloat16 else NotImplemented


def _packed(value: object) -> memoryview:
    buffer = io.BytesIO()
    _Packer(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getbuffer()


def _packed_error(error: Exception) -> memoryview:
    text = "".join(traceback.format_exception(error))
    try:
        answer = _packed((None, None, error))
        pickle.loads(answer)  # what takes arguments of its own often can't be made again
    except Exception:
        error = RuntimeError(str(error))
    error.add_note(f"In the process that trained the client:\n{text}")
    return _packed((None, None, error))
