import subprocess
import sys
from pathlib import Path

import pytest

from flower.deployment import until

CHILD = """
import time
from fedlag.flower.orphan import end_when_orphaned
end_when_orphaned(0.1)
print("watching", flush=True)
time.sleep(600)
"""

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(not Path("/proc").exists(), reason="asks /proc whether the process is still there")
def test_a_process_ends_when_its_parent_is_killed():
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        child = int(parent.stdout.readline())
        assert alive(child)
        parent.kill()
    until(lambda: not alive(child), "the child has ended")


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
