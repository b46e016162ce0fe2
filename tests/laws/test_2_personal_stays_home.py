"""Law 2: nothing personal is in any message, letter or reply, watched names aside."""

from fedlag import tree
from laws.federations import PLUS_LAG, every_method, ordinary, parametrised


@every_method
def test_what_is_personal_is_in_no_message_letter_or_reply(algorithm):
    for message, letters, replies in ordinary(algorithm).heard:
        hidden = message.personal - message.watched
        assert message.personal.isdisjoint(tree.keys((message.shared, message.extra)))
        assert message.personal.issuperset(message.watched)
        for letter in letters.values():
            assert message.personal.isdisjoint(tree.keys(letter.extra))
            assert message.personal.issuperset(letter.birth)
        for reply in replies.values():
            assert hidden.isdisjoint(tree.keys((reply.update, reply.trained, reply.witness, reply.extra)))
            assert message.watched == reply.trained.keys()


@every_method
def test_a_copy_of_personal_layers_is_sent_only_to_those_who_cannot_have_one(algorithm):
    """Nobody's reply is lost here, so the server knows exactly who holds what."""
    trained: dict[int, int] = {}
    for message, letters, _ in ordinary(algorithm).heard:
        for client, letter in letters.items():
            void = {name for name in message.personal if trained.get(client, -1) < message.since.get(name, 0)}
            assert letter.birth.keys() == void
        trained |= dict.fromkeys(letters, message.round)


@parametrised(PLUS_LAG)
def test_with_lag_something_is_personal_in_these_federations(algorithm):
    """Or the laws above would say nothing."""
    assert any(message.personal for message, _, _ in ordinary(algorithm).heard)
