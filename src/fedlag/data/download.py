"""Official files, fetched once: resumed where they were cut off, and verified before they are believed."""

from __future__ import annotations

import math
import os
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fedlag.errors import InputError

CHUNK = 1 << 16
TIMEOUT = 30
"""Seconds without an answer before a server counts as gone."""


class Download(NamedTuple):
    url: str
    size: int
    sha256: str

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


def cache() -> Path:
    """Where downloads are kept."""
    import pooch

    return Path(pooch.os_cache("fedlag"))


def fetch(download: Download, folder: Path) -> Path:
    """The file in `folder`, downloaded unless it is there already and has the right SHA-256."""
    import pooch
    from filelock import FileLock

    target = folder / download.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):
            pooch.retrieve(
                download.url,
                known_hash=f"sha256:{download.sha256}",
                fname=download.name,
                path=folder,
                downloader=partial(_resume, part=Path(f"{target}.part"), size=download.size),
            )
    except ValueError as error:
        raise InputError(
            f"What came from {download.url} is not the official file (its SHA-256 differs) and was dropped: try again, "
            f"or put {download.name} into a folder and name that in data.root or FEDLAG_DATA."
        ) from error
    except OSError as error:
        raise InputError(
            f"Could not download {download.url} ({_reason(error)}): try again, which goes on where this stopped, or "
            f"put {download.name} into a folder and name that in data.root or FEDLAG_DATA."
        ) from error
    return target


def _resume(url: str, output: str, _: Any, *, part: Path, size: int) -> None:
    """Fill `part`, which survives an interruption, for as long as each try brings something; then hand it over.

    Called by pooch, which verifies `output` and only then gives it its name.
    """
    import requests

    while (have := _size(part)) < size:
        failure: requests.RequestException = requests.ConnectionError()
        try:
            _more(url, part, have, size)
        except requests.RequestException as error:
            failure = error
        if _size(part) <= have:
            raise failure
    os.replace(part, output)


def _more(url: str, part: Path, have: int, size: int) -> None:
    import requests
    from rich.console import Console
    from rich.progress import track

    headers = {"User-Agent": "fedlag", "Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
        if response.status_code == requests.codes.requested_range_not_satisfiable:
            part.unlink()  # of no use to anyone: start afresh next time
        response.raise_for_status()
        whole = response.status_code != requests.codes.partial_content
        with part.open("wb" if whole else "ab") as file:
            console = Console(stderr=True)
            for chunk in track(
                response.iter_content(CHUNK),
                description=part.stem,
                total=math.ceil((size if whole else size - have) / CHUNK),
                console=console,
                transient=True,
                disable=not console.is_terminal,
            ):
                file.write(chunk)


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _reason(error: OSError) -> str:
    response = getattr(error, "response", None)
    if response is not None:
        return f"the server answered {response.status_code}"
    return error.strerror or type(error).__name__
