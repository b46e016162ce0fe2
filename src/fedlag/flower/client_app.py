"""The client's half: one call in, one answer out, and what the client keeps in files of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from flwr.app import Context, Error
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from fedlag.errors import InputError, Lost
from fedlag.federation.sequential import one_thread
from fedlag.federation.work import ClientWork
from fedlag.flower import wire
from fedlag.flower.site import Site, kept, site_of, store
from fedlag.flower.wire import Answer, Call
from fedlag.round import client_evaluate, client_round

Result = TypeVar("Result")
Handler = Callable[[Site, Call, Context], Answer]

log = logging.getLogger("flwr")  # where Flower's programs say what they do


def client_app(file: str | Path) -> ClientApp:
    """The ClientApp of the experiment.toml that lies beside `file`."""
    home = Path(file).resolve().parent
    app = ClientApp()

    @app.query()
    def hello(message: FlowerMessage, context: Context) -> FlowerMessage:
        try:
            return FlowerMessage(wire.write(site_of(home, context).hello), reply_to=message)
        except InputError as error:
            log.error("%s", error)
            return FlowerMessage(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(error)), reply_to=message)

    @app.train()
    def train(message: FlowerMessage, context: Context) -> FlowerMessage:
        return _answered(home, message, context, _train)

    @app.evaluate()
    def evaluate(message: FlowerMessage, context: Context) -> FlowerMessage:
        return _answered(home, message, context, _evaluate)

    return app


def _answered(home: Path, message: FlowerMessage, context: Context, handler: Handler) -> FlowerMessage:
    """Whatever goes wrong is said on this node and to the server."""
    call = wire.read_call(message.content)
    try:
        site = site_of(home, context)
        if site.client != call.client:
            raise InputError(f"The call is for client {call.client}, but this node is client {site.client}.")
        with one_thread():
            answer = handler(site, call, context)
    except Exception as error:
        log.exception("Round %d", call.message.round + 1)
        problem = str(error) or type(error).__name__
        answer = Answer(call.client, call.message.round, problem=problem, lost=isinstance(error, Lost))
    return FlowerMessage(wire.write(answer), reply_to=message)


def _train(site: Site, call: Call, context: Context) -> Answer:
    files = store(site, call.federation, context)
    known, work = kept(site, files, call.letter.met), _work(site, call)
    client, reply = within(call.seconds, lambda: client_round(site.task, call.message, call.letter, known, work))
    if isinstance(reply, Exception):
        raise reply
    files.save(client)  # before the server can have taken the reply
    return Answer(call.client, call.message.round, reply=reply)


def _evaluate(site: Site, call: Call, context: Context) -> Answer:
    known, work = kept(site, store(site, call.federation, context), call.letter.met), _work(site, call)
    scores = within(
        call.seconds, lambda: client_evaluate(site.task, call.message, call.letter, known, work, call.stage)
    )
    return Answer(call.client, call.message.round, scores=scores)


def _work(site: Site, call: Call) -> ClientWork:
    return ClientWork(site.source, site.experiment.seed, call.message.round, site.client, call.scored)


def within(seconds: float, function: Callable[[], Result]) -> Result:
    """What the function returns, unless it takes longer: the node must be free again when the server gave up on it."""
    done: list[Result] = []
    failed: list[Exception] = []

    def run() -> None:
        try:
            with one_thread():  # counted by thread
                done.append(function())
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not done:
        raise TimeoutError(f"it took longer than {seconds:g} s")
    return done[0]
