"""Updates written down as rows of numbers, spread over two layers."""

import torch
from laws.federations import replies


def updates(*rows, dtype=torch.float64, **settings):
    """Replies of clients whose updates are these rows: the first number is in the body, the others in the head."""
    rows = torch.as_tensor(rows if len(rows) > 1 else rows[0], dtype=dtype)
    return replies({"body.weight": rows[:, :1], "head.weight": rows[:, 1:]}, **settings)


def row(params):
    """What was made of them, as one row."""
    return torch.cat([params["body.weight"], params["head.weight"]])


def draw(seed, clients, size):
    """Random updates of very different lengths."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randn(clients, 1, generator=generator, dtype=torch.float64).exp()
    return lengths * torch.randn(clients, size, generator=generator, dtype=torch.float64)


def permuted(given, order):
    """The same replies in another order."""
    return given._replace(
        ids=tuple(given.ids[i] for i in order),
        update={name: value[order] for name, value in given.update.items()},
        examples=given.examples[order],
        steps=given.steps[order],
    )
