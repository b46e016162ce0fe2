"""The documented commands let in the nodes that were registered, and nobody else. Real programs, on loopback."""

import re
import subprocess
from pathlib import Path
from shutil import which

import pytest

from tests.flower.deployment import deployment, free_port, until
from tests.flower.test_quickstart import changed

DOCS = Path(__file__).parents[2] / "docs" / "flower-security.md"
TURNED_AWAY, NO_TLS = 305, 303  # the codes Flower says when a node ends

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (which("openssl") and which("ssh-keygen")), reason="needs openssl and ssh-keygen"),
]


def commands(program):
    """The documented block that starts with this program."""
    return next(
        block for block in re.findall(r"```bash\n(.*?)```", DOCS.read_text(), re.DOTALL) if block.startswith(program)
    )


def options(program):
    """The documented options of a program, without the ones that are places on this machine."""
    words = commands(program).replace("\\\n", " ").split()[1:]
    return [word for word in words if word]


def shell(script, folder):
    subprocess.run(["bash", "-euc", script], cwd=folder, check=True, capture_output=True, timeout=60)


def key(folder, name):
    shell(commands("ssh-keygen").replace("site0", name), folder)
    return folder / name


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """A SuperLink with TLS that knows two sites, which are there."""
    folder = tmp_path_factory.mktemp("federation")
    shell(commands("openssl"), folder)
    words = options("flower-superlink")
    superlink = words[: words.index("--database")]
    assert "--enable-supernode-auth" in superlink
    with deployment(folder, superlink=superlink) as there:
        there.connection = {"address": f"127.0.0.1:{there.port}", "root-certificates": str(folder / "ca.crt")}
        for site in range(2):
            there.flwr("supernode", "register", f"{key(folder, f'site{site}')}.pub", "here")
            there.start_node(site, 2, secure(folder, f"site{site}"))
        until(lambda: online(there) == 2, "both nodes are there")
        yield there


@pytest.fixture(scope="module")
def other(there):
    """Another authority, and a key that nobody registered."""
    authority = "\n".join(commands("openssl").splitlines()[:2])
    shell(authority.replace("ca.", "other."), there.folder)
    key(there.folder, "stranger")


def secure(folder, name, authority="ca.crt", retries=1):
    words = options("flower-supernode")
    given = words[words.index("--root-certificates") : words.index("--port")]
    given[given.index("ca.crt")] = str(folder / authority)
    given[given.index("site0")] = str(folder / name)
    given[given.index("--max-retries") + 1] = str(retries)
    return given


def online(there):
    return there.flwr("supernode", "list", "here", "--format", "json").count('"online"')


def test_registered_nodes_run_fedlag(there, tmp_path):
    run = there.submit(changed(tmp_path), num_server_rounds=1)
    outcome = there.wait(run, patience=300)  # every message starts a process of its own
    assert outcome.status == "finished:completed", outcome.log
    assert "Not used" not in outcome.log


def without(words, *names):
    """Options without some of them and their values."""
    return [word for i, word in enumerate(words) if word not in names and (i == 0 or words[i - 1] not in names)]


CERTIFICATES, KEY = "--root-certificates", "--auth-supernode-private-key"


@pytest.mark.parametrize(
    ("stranger", "code", "says"),
    [
        ("an unregistered key", TURNED_AWAY, "Failed to activate"),
        ("no key", TURNED_AWAY, "register"),
        ("another authority", TURNED_AWAY, "CERTIFICATE_VERIFY_FAILED"),
        ("plaintext", TURNED_AWAY, ""),
        ("plaintext with a key", NO_TLS, ""),
    ],
)
def test_strangers_are_turned_away(there, other, stranger, code, says):
    folder = there.folder
    given = {
        "an unregistered key": secure(folder, "stranger"),
        "no key": without(secure(folder, "site0"), KEY),
        "another authority": secure(folder, "stranger", authority="other.crt"),
        "plaintext": ["--insecure", *without(secure(folder, "site0"), KEY, CERTIFICATES)],
        "plaintext with a key": ["--insecure", *without(secure(folder, "stranger"), CERTIFICATES)],
    }[stranger]
    name = stranger.replace(" ", "-")
    here = ("--superlink", f"127.0.0.1:{there.port}", "--port", str(free_port()), "--node-config", "partition-id=7")
    there.start(name, "flower-supernode", *here, *given)
    program = there.programs[name]
    until(lambda: program.poll() is not None, f"{stranger} is turned away")
    del there.programs[name]
    assert program.returncode != 0
    assert f"Exit Code: {code}" in there.log(name)
    assert says in there.log(name)
    assert online(there) == 2


@pytest.mark.parametrize("connection", [{"insecure": True}, {"root-certificates": "other.crt"}])
def test_commands_are_turned_away_too(there, other, connection, monkeypatch):
    if "root-certificates" in connection:
        connection = {"root-certificates": str(there.folder / "other.crt")}
    monkeypatch.setattr(there, "connection", {"address": there.connection["address"], **connection})
    with pytest.raises(AssertionError, match="flwr supernode list here failed"):
        there.flwr("supernode", "list", "here")
