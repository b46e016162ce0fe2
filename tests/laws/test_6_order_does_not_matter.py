"""Law 6: the order of clients doesn't matter to the server beyond rounding."""

import torch

from fedlag.replies import gather
from fedlag.round import address, broadcast, server_round
from fedlag.tree import leaves
from laws.federations import close, every_method, same, start


@every_method
def test_permuting_clients_changes_nothing_beyond_rounding(algorithm):
    task, server, federation = start(algorithm)
    cohort, other = (0, 1, 2, 3, 4), (3, 0, 4, 2, 1)
    for _ in range(2):
        message = broadcast(task, server)
        answers = list(federation.train(message, {c: address(task, server, c) for c in cohort}, ()))

        arrived = gather(task, message, server.params, cohort, answers)
        assert same(arrived, gather(task, message, server.params, cohort, reversed(answers))), (
            "answers arrive in any order"
        )

        server_one, step_one = server_round(task, server, arrived.replies)
        permuted = gather(task, message, server.params, other, answers).replies
        assert permuted.ids == other
        server_two, step_two = server_round(task, server, permuted)

        assert close(server_one.params, server_two.params)
        assert step_one.personal == step_two.personal
        counts = [{name: c.count for name, c in step.conflicts.items()} for step in (step_one, step_two)]
        assert counts[0] == counts[1]
        kept = [list(leaves((one.memory, one.optimizer))) for one in (server_one, server_two)]
        for one, two in zip(*kept, strict=True):
            assert torch.allclose(torch.as_tensor(one), torch.as_tensor(two), atol=1e-6)
        assert server_one.met == server_two.met
        server = server_one
