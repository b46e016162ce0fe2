"""Training in bfloat16: other products, the same everything else."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from laws.federations import TRAINING, conv, mlp, run, same

from fedlag.algorithms import FedAvg
from fedlag.algorithms.scaffold import SCAFFOLD
from fedlag.errors import InputError
from fedlag.federation.batched import Batched
from fedlag.federation.threaded import Threaded
from fedlag.federation.vectorized import Vectorized
from fedlag.tree import sub

COARSE = replace(TRAINING, precision="bf16")


@pytest.mark.parametrize("algorithm", [FedAvg(), SCAFFOLD()])
def test_weights_stay_float32_and_move_almost_as_in_full_precision(algorithm):
    fine, coarse = run(algorithm, net=conv, number=1), run(algorithm, net=conv, number=1, training=COARSE)
    start = fine.task.model.init()
    moves = [sub(one.server.params, start) for one in (fine, coarse)]
    assert {value.dtype for value in moves[1].values()} == {torch.float32}
    fine_move, coarse_move = (torch.cat([value.flatten() for value in move.values()]) for move in moves)
    cosine = torch.nn.functional.cosine_similarity(fine_move, coarse_move, 0)
    assert 0.98 < cosine < 1 - 1e-6


@pytest.mark.parametrize("federation", [partial(Threaded, workers=2), Batched, Vectorized])
@pytest.mark.parametrize("net", [mlp, conv])
def test_every_federation_agrees_to_the_bit(federation, net):
    done, reference = (run(FedAvg(), net=net, training=COARSE, **given) for given in ({"federation": federation}, {}))
    assert same(done.server, reference.server)


def test_other_precisions_are_refused():
    with pytest.raises(InputError, match=r"training.precision.*'fp32', 'bf16'"):
        replace(TRAINING, precision="fp16")
