"""What flows between server and clients, and what each side keeps. All of it is immutable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from torch import Tensor

from fedlag.net import Model
from fedlag.optim import Optimizer
from fedlag.tree import Params, Tree

if TYPE_CHECKING:
    from fedlag.algorithm import Training

    Loss = Callable[["Local", Params, "Batch"], Tensor]
    Gradient = Callable[[Callable[[Params], Tensor]], Callable[[Params], tuple[Params, Params]]]


class Batch(NamedTuple):
    x: Tensor  # (examples, channels, height, width)
    y: Tensor  # (examples,) class numbers


class Message(NamedTuple):
    """From the server to every participant of a round."""

    round: int
    shared: Params  # what every client starts from
    personal: frozenset[str]  # names that stay home
    since: dict[str, int]  # name -> round; a client that trained no round since then has nothing valid of that name
    watched: frozenset[str]  # personal names whose movement the server still asks to see
    extra: Tree  # what the algorithm adds


class Letter(NamedTuple):
    """From the server to one participant."""

    birth: Params  # the server's copy of personal names of which this client has no valid copy of its own
    extra: Tree
    met: int = -1  # the round whose end the client goes on from: its last that the server took; -1 before the first


class Reply(NamedTuple):
    """From a participant to the server."""

    update: Params  # end - start, for shared and watched names
    trained: Params  # end, for watched names: keeps the server's copy of a personal layer current
    witness: Params  # what a rule asked for besides the update
    extra: Tree
    examples: int
    steps: int
    scores: Scores  # of the model right after training


class Replies(NamedTuple):
    """The replies of a round, stacked along a first dimension (clients), in the order of `ids`."""

    round: int
    ids: tuple[int, ...]
    update: Params
    trained: Params
    witness: Params
    extra: Tree
    examples: Tensor
    steps: Tensor


class Client(NamedTuple):
    """What a client keeps between rounds."""

    round: int = -1  # the last round it trained; -1 before the first
    params: Params = {}  # its own copies of whatever is, or may become, personal
    memory: Tree = None


class Server(NamedTuple):
    """What the server keeps between rounds."""

    round: int
    params: Params  # its copy of everything, personal names included
    optimizer: Tree
    rule: Any
    memory: Tree
    since: dict[str, int]  # name -> first round for which what a client holds under that name is valid
    met: dict[int, int]  # client -> the last round whose reply was taken


class Score(NamedTuple):
    """How well a model does on some examples."""

    accuracy: float
    loss: float
    examples: int


Scores = dict[str, Score]  # part ("validation", "test") -> score


class Stream(Protocol):
    """One reproducible sequence of shuffled batches."""

    @property
    def examples(self) -> Batch: ...
    def epochs(self, batch: int, epochs: int) -> Iterator[Tensor]: ...  # rows in their order, epoch after epoch
    def batches(self, batch: int, epochs: int) -> Iterator[Batch]: ...


class Work(Protocol):
    """What a client has at hand in a round: its examples and its randomness."""

    @property
    def client(self) -> int: ...
    @property
    def scored(self) -> tuple[str, ...]: ...  # parts to score the model on after training
    def examples(self, part: str) -> Batch: ...
    def stream(self, purpose: str) -> Stream: ...
    def draw(self, purpose: str, number: int, batch: int) -> Batch: ...  # one batch on its own, with replacement
    def seed(self, purpose: str) -> int: ...


class Local(NamedTuple):
    """Everything a client may look at while it works."""

    net: Model
    training: Training
    message: Message
    letter: Letter
    client: Client  # `memory` without what is personal now
    work: Work
    start: Params  # shared as received plus personal as kept
    notes: Tree  # what the algorithm's `prepare` returned; empty at evaluation
    number: int  # of the present step, from 0
    grad: Gradient  # grad(f)(params) -> (gradients of f, entries no gradient moves as f left them)
    optimizer: Optimizer
    fit: Callable[..., tuple[Params, int]]
