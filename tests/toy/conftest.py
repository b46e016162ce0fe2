import pytest

from fedlag.federation.sequential import one_thread


@pytest.fixture(autouse=True, scope="package")
def _one_thread():
    with one_thread():
        yield
