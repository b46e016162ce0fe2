"""`FedLAG`: a Flower strategy in the place of `FedAvg`. Layers on which clients conflict stay with them.

What a round does on the server is fedlag's own code, the same as in its simulator; here Flower's messages become
fedlag's replies, and what fedlag broadcasts becomes Flower's messages.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from fedlag import check, checkpoint, tree
from fedlag.errors import InputError, unknown
from fedlag.flow import Server
from fedlag.flower import instructions, receipts, rounds
from fedlag.flower.instructions import to_arrays, to_tensors
from fedlag.lag import LAG
from fedlag.round import Task

log = logging.getLogger("flwr.fedlag")  # where Flower says what it does

FEDAVG = tuple(inspect.signature(FedAvg).parameters)
RULE = tuple(field.name for field in fields(LAG))


class FedLAG(FedAvg):
    """FedAvg for Flower's message API, with layers that stay home.

    Takes FedAvg's arguments, `LAG`'s (k, xi, warmup, mode, unit, norm, min_ratio, hold), and these:

    min_replies: with fewer usable replies a round changes nothing.
    outlier: a reply is not used if it moved more than this many times as far as the median reply.
    state: a folder the strategy is saved in after every round; if it is there already, the run goes on from it.

    Every ClientApp needs `keep_personal` among its mods.
    """

    _task: Task
    _server: Server
    _experiment: str  # whose state may be taken up

    def __init__(
        self,
        *positional: Any,
        min_replies: int = 2,
        outlier: float = 1000.0,
        state: str | Path | None = None,
        **arguments: Any,
    ) -> None:
        for name in arguments:
            if name not in FEDAVG + RULE:
                raise unknown("argument of FedLAG", name, (*FEDAVG, *RULE, "min_replies", "outlier", "state"))
        self.lag = LAG(**{name: value for name, value in arguments.items() if name in RULE})
        super().__init__(*positional, **{name: value for name, value in arguments.items() if name in FEDAVG})
        check.count("min_replies", min_replies, least=1)
        check.require(check.number(outlier) and outlier > 1, "outlier", outlier, "a number above 1")
        self.min_replies = min_replies
        self.outlier = outlier
        self.state = None if state is None else Path(state)
        self.dropped = Counter[str]()  # who -> how many of its replies were not used
        self._leads = False  # whether Flower's loop runs on this strategy, and not on one around it
        self._asked: tuple[int, ...] = ()  # nodes that are training
        self._partitions: dict[int, int] = {}  # node -> whose data it holds, as far as it has said

    def summary(self) -> None:
        log.info("\t├──> %s", self.lag)
        super().summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Flower's loop, up to round `num_rounds` of the run; rounds of a saved state count."""
        self._leads = True
        try:
            self._begin(initial_arrays)
            done = self._server.round
            if self.lag.warmup >= num_rounds:
                log.warning("No layer becomes personal: %s, and the run has %d rounds.", self.lag, num_rounds)
            shifted = evaluate_fn and (lambda round, arrays: evaluate_fn(done + round, arrays))
            remaining = max(0, num_rounds - done)
            result = super().start(grid, self.arrays, remaining, timeout, train_config, evaluate_config, shifted)
        finally:
            self._leads = False
        if self.dropped:
            log.warning(
                "Answers not used in this run: %s.", ", ".join(f"{n} of {who}" for who, n in self.dropped.items())
            )
        result.arrays = self.arrays
        for history in ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"):
            setattr(result, history, {done + round: one for round, one in getattr(result, history).items()})
        return result

    @property
    def arrays(self) -> ArrayRecord:
        """The whole model as the server has it: what is shared, and the last average of what is personal."""
        return to_arrays(rounds.whole(self._server))

    @property
    def personal(self) -> frozenset[str]:
        """The names that stay home now."""
        return self.lag.personal(self._server.rule)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if not self._leads and server_round == 1:
            self._begin(arrays)
        if self._asked:  # the strategy around this one let the round go by
            self._server = rounds.forgo(self._server, self._asked)
        self._take(arrays)
        messages = self._addressed(super().configure_train, self._server.round + 1, config, grid)
        self._asked = tuple(message.metadata.dst_node_id for message in messages)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        asked, self._asked = self._asked, ()
        if not asked:
            return None, None
        before, sent = self._server, rounds.shared(self._task, self._server)
        answers = [receipts.read(reply, before.round, sent, self.weighted_by_key) for reply in replies]
        self._partitions |= {one.node: one.partition for one in answers if one.partition is not None}
        settled = rounds.settle(self._task, before, asked, answers, self.min_replies, self.outlier)
        self._server = settled.server
        for node, reason in settled.odd:
            self._drop(node, reason)
        if not settled.used:
            log.warning("Round %d changes nothing: fewer than %d usable replies.", before.round + 1, self.min_replies)
            return None, None
        self._save()
        if not self._leads:
            self._keep_announced(before)
        if self.personal != self.lag.personal(before.rule):
            log.info("\t└──> Personal from now on: %s", ", ".join(sorted(self.personal)) or "nothing")
        metrics = self.train_metrics_aggr_fn([answer.content for answer in settled.used], self.weighted_by_key)
        return (self.arrays if self._leads else to_arrays(rounds.shared(self._task, self._server))), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self._take(arrays)
        return self._addressed(super().configure_evaluate, self._server.round, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        replies = sorted(replies, key=lambda reply: self._partitions.get(reply.metadata.src_node_id, 0))
        failed = {reply.metadata.src_node_id: reply.error.reason for reply in replies if reply.has_error()}
        self._server = rounds.forget(self._server, failed)
        for node, reason in failed.items():
            self._drop(node, f"its evaluation failed: {reason}")
        contents = [reply.content for reply in replies if not reply.has_error()]
        usable = receipts.usual_metrics(contents, self.weighted_by_key)
        if len(usable) < len(contents):
            log.warning("%d evaluations have other metrics than most, or no weight.", len(contents) - len(usable))
        return self.evaluate_metrics_aggr_fn(usable, self.weighted_by_key) if usable else None

    def _begin(self, arrays: ArrayRecord) -> None:
        """Round one, or wherever a saved state stands."""
        params = to_tensors(arrays)
        self._task, self._server = rounds.begin(self.lag, params)
        self._asked, self.dropped = (), Counter()
        if not self._leads:
            self._refuse_what_cannot_be_wrapped()
        if self.state:
            forms = {name: (str(value.dtype), list(value.shape)) for name, value in params.items()}
            self._experiment = hashlib.sha256(f"{self.lag} {forms}".encode()).hexdigest()[:16]
            if saved := checkpoint.load(self.state, self._experiment, self._server):
                self._server = saved[0]
                log.info("Going on after round %d, as saved in %s.", self._server.round, self.state)
            self._save()

    def _refuse_what_cannot_be_wrapped(self) -> None:
        if self.lag.mode != "frozen" or self.lag.norm == "local":
            raise InputError(
                f"{self.lag} cannot run inside another strategy: privacy wrappers need replies with the very weights "
                'that were sent. Give FedLAG mode="frozen" and a norm other than "local", or call start() on it.'
            )
        if self.state:
            raise InputError(
                "state cannot be kept inside another strategy, which changes what is aggregated; leave it out."
            )

    def _save(self) -> None:
        if self.state:
            checkpoint.save(self.state, self._experiment, self._server, {})

    def _take(self, arrays: ArrayRecord) -> None:
        """What the caller holds is what counts: a strategy around this one may have added noise to it."""
        if not self._leads:
            ours = self._server.params
            theirs = {name: value for name, value in to_tensors(arrays).items() if name in ours}
            self._server = self._server._replace(params=ours | theirs)

    def _keep_announced(self, before: Server) -> None:
        """Of layers that leave the wrapper's sight, keep what it last let out, not what it has added no noise to."""
        announced = tree.select(before.params, self.personal)
        self._server = self._server._replace(params=self._server.params | announced)

    def _addressed(
        self, configure: Callable[..., Iterable[Message]], number: int, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """The messages of Flower's FedAvg, with instructions for each node."""
        arrays, config = to_arrays(rounds.shared(self._task, self._server)), ConfigRecord(dict(config))
        messages = list(configure(number, arrays, config, grid))
        for message in messages:
            told = rounds.instruct(self._task, self._server, message.metadata.dst_node_id)
            own = instructions.write(told, config)
            message.content = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: own})
        return messages

    def _drop(self, node: int, reason: str) -> None:
        partition = self._partitions.get(node)
        who = f"node {node}" if partition is None else f"partition {partition} (node {node})"
        self.dropped[who] += 1
        log.warning("The answer of %s is not used: %s.", who, reason)

    # Flower's older strategies

    def configure_fit(self, *_: Any, **__: Any) -> NoReturn:
        raise InputError(
            "FedLAG is no strategy for Flower's older workflows, SecAgg+ among them: layers are chosen by every node's "
            "own update, which secure aggregation hides. Call start() in a ServerApp; for fixed layers under secure "
            "aggregation leave them out of the ClientApp's weights."
        )

    initialize_parameters = configure_fit
