"""Which runs the toy is made of."""

from __future__ import annotations

from dataclasses import dataclass

from fedlag.lag import LAG
from fedlag.personal import Named
from fedlag.toy.data import everybody, iid, non_iid
from fedlag.toy.training import ASIDE, ORIGIN, SETTLING, Run, train

EVERYTHING = Named("*")
ONE_SCALAR = LAG(k=1, warmup=0, unit="tensor")


@dataclass(frozen=True)
class Experiment:
    """Runs by the kind of data, "non-IID" and "IID". All start from the origin but `aside`."""

    fedavg: dict[str, Run]
    aside: dict[str, Run]  # FedAvg from elsewhere
    settled: dict[str, Run]  # training alone until nothing moves: each user's own line
    pooled: Run  # one user with everybody's points, until nothing moves: the best line for all
    lag: Run  # non-IID, with one of the three scalars personal
    alone: Run  # non-IID, for as many steps as the others


def experiment(seed: int = 0, rounds: int = 200) -> Experiment:
    kinds = {"non-IID": non_iid(seed), "IID": iid(seed)}
    return Experiment(
        fedavg={kind: train(users, start=ORIGIN, rounds=rounds) for kind, users in kinds.items()},
        aside={kind: train(users, start=ASIDE, rounds=rounds) for kind, users in kinds.items()},
        settled={kind: train(users, EVERYTHING, rounds=1, training=SETTLING) for kind, users in kinds.items()},
        pooled=train((everybody(kinds["IID"]),), EVERYTHING, rounds=1, training=SETTLING),
        lag=train(kinds["non-IID"], ONE_SCALAR, rounds=rounds),
        alone=train(kinds["non-IID"], EVERYTHING, rounds=rounds),
    )
