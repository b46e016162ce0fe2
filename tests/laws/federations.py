"""Tiny federations on which every law is tried: ragged clients, partial participation, a few rounds.

Five clients of 13, 9, 3, 8 and 6 examples with batches of 8: some have fewer than a batch, one ends on a batch of one,
the last knows a single class. Clients name the classes differently, so that layers conflict.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedlag.algorithm import Algorithm, Training
from fedlag.algorithms import REGISTRY, FedAvg
from fedlag.federation.sequential import Sequential
from fedlag.federation.work import ClientWork, Source
from fedlag.flow import Batch, Client, Letter, Local, Message, Replies, Reply, Scores, Server
from fedlag.lag import LAG
from fedlag.layers import Anatomy
from fedlag.net import Model, Net
from fedlag.optim import SGD
from fedlag.personal import Rule, Union
from fedlag.round import STAGES, Task, begin
from fedlag.run import Round, Sampling, evaluate, rounds
from fedlag.tree import Params, under

torch.set_num_threads(1)

SEED = 5
SIZES = (13, 9, 3, 8, 6)
SINGLE_CLASS = 4
CLASSES = 3
TRAINING = Training(batch=8, optimizer=SGD(lr=0.1))
SOME = Sampling(fraction=0.6)  # three of five
ALL = Sampling()


# Models


def mlp() -> Net:
    """Three layers: body.1, body.3 and head."""
    return _net(lambda: (nn.Flatten(), nn.Linear(16, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh()))


def conv(dropout: float = 0.0) -> Net:
    """Three layers: body.0 with the BatchNorm after it, body.5 and head."""
    return _net(
        lambda: (
            *(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU()),
            *(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 5), nn.Dropout(dropout)),
        )
    )


def noisy() -> Net:
    """As conv, with a dropout that draws random numbers: everything that is hard to keep track of."""
    return conv(dropout=0.3)


def _net(body: Callable[[], tuple[nn.Module, ...]]) -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return Net(nn.Sequential(*body()), nn.Linear(5, CLASSES))


# Data


def ragged(sizes: Sequence[int] = SIZES, single: int | None = SINGLE_CLASS, seed: int = SEED) -> Source:
    """Examples of shape (1, 4, 4); `single` is a client that only knows one class."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, 1, 4, 4, generator=generator)

    def draw(client: int, count: int) -> Batch:
        y = torch.randint(CLASSES, (count,), generator=generator)
        y = torch.zeros_like(y) if client == single else y
        x = centres[y] + torch.randn(count, 1, 4, 4, generator=generator)
        return Batch(x, y if client == single else (y + client) % CLASSES)

    parts = {"train": sizes, "validation": [4] * len(sizes), "test": [7] * len(sizes)}
    drawn = {
        (client, part): draw(client, count) for part, counts in parts.items() for client, count in enumerate(counts)
    }
    return lambda client, part: drawn[client, part]


def identical(clients: int = 4, count: int = 10) -> Source:
    """The same examples for everybody."""
    one = ragged((count,), single=None)
    return lambda client, part: one(0, part)


def double(source: Source) -> Source:
    """The same examples in float64."""
    return lambda client, part: Batch(source(client, part).x.double(), source(client, part).y)


# Methods


def with_lag(algorithm: Algorithm, **settings: Any) -> Algorithm:
    """The method + LAG."""
    return replace(algorithm, personal=algorithm.personal | LAG(**{"k": 1, "warmup": 1, **settings}))


def brisk(rule: Rule) -> Rule:
    """The rule with a warm-up of one round, so that a few rounds show what it does."""
    if isinstance(rule, Union):
        return Union(brisk(rule.left), brisk(rule.right))
    return replace(rule, warmup=1) if hasattr(rule, "warmup") else rule  # type: ignore[type-var]


HASTE: dict[str, dict[str, int]] = {"fedaf": {"images": 2, "image_steps": 3, "epochs": 2}}  # what only takes time


def method(name: str) -> Algorithm:
    algorithm = REGISTRY[name](**HASTE.get(name, {}))
    return replace(algorithm, personal=brisk(algorithm.personal))


BARE = {name: method(name) for name in REGISTRY}
AVERAGING = {name: algorithm for name, algorithm in BARE.items() if algorithm.averages}  # of others LAG is refused
PLUS_LAG = {f"{name}+lag": with_lag(algorithm, warmup=0) for name, algorithm in AVERAGING.items()}


def parametrised(methods: Mapping[str, Algorithm]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("algorithm", [pytest.param(value, id=name) for name, value in methods.items()])


every_bare_method = parametrised(BARE)
every_averaging_method = parametrised({**AVERAGING, **PLUS_LAG})
every_method = parametrised({**BARE, **PLUS_LAG})


@dataclass(frozen=True)
class Scheduled(Rule):
    """Patterns of what is personal in round 0, 1, …; the last one from then on."""

    patterns: tuple[str, ...]
    watches: bool = True

    def init(self, anatomy: Anatomy) -> tuple[tuple[str, ...], int]:
        return anatomy.names, 0

    def update(self, state: Any, replies: Replies, round: int) -> Any:
        return (state[0], round + 1), {}

    def personal(self, state: Any) -> frozenset[str]:
        return under(state[0], self.patterns[min(state[1], len(self.patterns) - 1)])

    def watched(self, state: Any) -> frozenset[str]:
        return self.personal(state) if self.watches else frozenset()

    def reach(self, anatomy: Anatomy) -> frozenset[str]:
        return under(anatomy.names, " ".join(self.patterns))


@dataclass(frozen=True, kw_only=True)
class Starting(FedAvg):
    """FedAvg that notes down, at every evaluation, what each client would start from."""

    starts: dict[int, Params] = field(default_factory=dict)

    def personalize(self, local: Local) -> Params:
        self.starts[local.work.client] = local.start
        return local.start


def starts(task: Task, server: Server, federation: Any) -> dict[int, Params]:
    """What every client would start the next round from."""
    evaluate(task, server, federation)
    return dict(task.algorithm.starts)  # type: ignore[attr-defined]


# Runs


@dataclass(frozen=True)
class Run:
    task: Task
    federation: Any
    rounds: list[Round]
    server: Server


@dataclass(frozen=True)
class Cohorts:
    """The participants of every round, as written down; the last ones from then on."""

    given: Sequence[Sequence[int]]

    def cohort(self, clients: int, seed: int, round: int) -> tuple[int, ...]:
        return tuple(self.given[min(round, len(self.given) - 1)])


def start(
    algorithm: Algorithm,
    net: Callable[[], Net] = noisy,
    source: Source | None = None,
    clients: int = len(SIZES),
    training: Training = TRAINING,
    federation: Callable[..., Any] = Sequential,
) -> tuple[Task, Server, Any]:
    task, server = begin(algorithm, Model(net()), training, clients, SEED)
    return task, server, federation(task, source or ragged(), SEED)


def run(
    algorithm: Algorithm,
    *,
    sampling: Any = SOME,
    number: int = 3,
    wrap: Callable[[Any], Any] | None = None,
    **setup: Any,
) -> Run:
    """`number` rounds; `wrap` puts something between the loop and the federation."""
    task, server, federation = start(algorithm, **setup)
    federation = wrap(federation) if wrap else federation
    done = list(islice(rounds(task, server, federation, sampling, SEED), number))
    return Run(task, federation, done, done[-1].server if done else server)


@dataclass(frozen=True)
class Ordinary:
    """What all laws may look at without running it again: some rounds, and what everybody scores after them."""

    run: Run
    heard: list[tuple[Message, dict[int, Letter], dict[int, Reply]]]
    scores: dict[str, dict[int, Scores]]


def ordinary(algorithm: Algorithm, net: Callable[[], Net] = noisy) -> Ordinary:
    key = id(algorithm), net
    if key not in _ordinary:
        done = run(algorithm, net=net, wrap=Wrapped)
        _ordinary[key] = Ordinary(done, done.federation.heard, scores(done))
    return _ordinary[key]


_ordinary: dict[Any, Ordinary] = {}


def scores(done: Run) -> dict[str, dict[int, Scores]]:
    """Of every client, stage by stage."""
    return {stage: evaluate(done.task, done.server, done.federation, stage) for stage in STAGES}


@dataclass
class Wrapped:
    """A federation that passes everything on, and remembers what was said. Subclasses interfere."""

    federation: Any
    heard: list[tuple[Message, dict[int, Letter], dict[int, Reply]]] = field(default_factory=list)

    def answer(self, round: int, client: int, reply: Reply) -> Iterator[tuple[int, Any]]:
        yield client, reply

    def train(self, message: Message, letters: Mapping[int, Letter], scored: Sequence[str]) -> Iterator[Any]:
        replies: dict[int, Reply] = {}
        self.heard.append((message, dict(letters), replies))
        for client, reply in self.federation.train(message, letters, scored):
            replies[client] = reply
            yield from self.answer(message.round, client, reply)

    def evaluate(self, message: Message, letters: Mapping[int, Letter], stage: str) -> Any:
        return self.federation.evaluate(message, letters, stage)

    def clients(self) -> dict[int, Client]:
        clients: dict[int, Client] = self.federation.clients()
        return clients


def work(source: Source, round: int, client: int, scored: tuple[str, ...] = ()) -> ClientWork:
    return ClientWork(source, SEED, round, client, scored)


def replies(updates: Mapping[str, Tensor], examples: Sequence[int] | None = None, extra: Any = None) -> Replies:
    """Replies as a round would stack them, from updates (clients, *shape)."""
    clients = len(next(iter(updates.values())))
    counts = torch.tensor(list(examples)) if examples is not None else torch.ones(clients, dtype=torch.int64)
    return Replies(
        round=0,
        ids=tuple(range(clients)),
        update=dict(updates),
        trained={},
        witness={},
        extra=extra or {},
        examples=counts,
        steps=torch.ones(clients, dtype=torch.int64),
    )


# Comparing


def same(a: Any, b: Any) -> bool:
    """Whether two trees are equal, bit for bit."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(value, b[key]) for key, value in a.items())
    if isinstance(a, tuple | list) and isinstance(b, tuple | list):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


def assert_as_one_by_one(federation: Callable[..., Any], algorithm: Algorithm, **setup: Any) -> str:
    """The federation ends where clients one by one end, in float64; returns why nobody trained together."""
    setup = {"source": double(ragged()), "sampling": ALL, "number": 2, **setup}
    done, reference = run(algorithm, federation=federation, **setup), run(algorithm, **setup)
    assert_equal([one.server for one in done.rounds], [one.server for one in reference.rounds], 1e-10)
    obstacle: str = done.federation.obstacle
    return obstacle


def close(a: Mapping[str, Tensor], b: Mapping[str, Tensor], tolerance: float = 1e-6) -> bool:
    return a.keys() == b.keys() and all(torch.allclose(a[name], b[name], rtol=0, atol=tolerance) for name in a)


def assert_equal(a: Any, b: Any, tolerance: float) -> None:
    """Whether two trees are equal beyond rounding."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key, value in a.items():
            assert_equal(value, b[key], tolerance)
    elif isinstance(a, tuple | list):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_equal(one, other, tolerance)
    elif isinstance(a, Tensor | float):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
    else:
        assert a == b


snapshot = copy.deepcopy
