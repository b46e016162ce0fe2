from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fedlag.data.own import from_arrays
from fedlag.data.sources import load
from fedlag.errors import InputError

PIL = pytest.importorskip("PIL.Image", reason="folders of images need Pillow")

LABELS = [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((6, 5), (6, 5, 1, 1)),
        ((6, 8, 7), (6, 1, 8, 7)),
        ((6, 3, 8, 7), (6, 3, 8, 7)),
        ((6, 8, 7, 3), (6, 3, 8, 7)),
        ((6, 8, 7, 1), (6, 1, 8, 7)),
        ((6, 2, 8, 7), (6, 2, 8, 7)),
        ((6, 3, 8, 3), (6, 3, 8, 3)),
    ],
)
@pytest.mark.parametrize("kind", [np.uint8, np.float64])
def test_arrays_become_examples_channels_height_width(given, expected, kind):
    x = np.arange(np.prod(given)).reshape(given).astype(kind)
    dataset = from_arrays(x, LABELS)
    assert tuple(dataset.x.shape) == expected
    assert dataset.classes == 3
    moved = x.transpose(0, 3, 1, 2) if expected[1] != given[1] and len(given) == 4 else x
    np.testing.assert_array_equal(dataset.x.numpy().ravel(), moved.ravel())


def test_bytes_are_seen_as_pixels_and_floats_as_they_are():
    pixels = from_arrays(np.full((6, 2, 2), 255, np.uint8), LABELS)
    assert pixels.pixels([0]).max() == 1
    values = from_arrays(np.full((6, 2), 255.0), LABELS)
    assert values.pixels([0]).max() == 255


@pytest.mark.parametrize(
    ("x", "y", "complaint"),
    [
        (np.zeros((5, 2)), LABELS, "5 examples and y 6 labels"),
        (np.zeros((6, 2)), [1, 2, 3, 1, 2, 3], "labels from 1 to 3; number the classes 0 to 2"),
        (np.zeros((6, 2)), [0, 1, 3, 0, 1, 3], "number the classes 0 to 2"),
        (np.zeros((6, 2)), [0] * 6, "at least 2 classes"),
        (np.zeros((6, 2)), [0.0, 1.0] * 3, "whole number per example; it is float64"),
        (np.zeros((6, 2)), [[0, 1, 0]] * 6, r"shape \(6, 3\)"),
        (np.zeros((6, 2)), [], "whole number per example"),
        (np.zeros(6), LABELS, r"x must be numbers of shape .* float64 of shape \(6,\)"),
        (np.array([["a"]] * 6), LABELS, "x must be numbers"),
        (np.array([[0.0], [1], [2], [np.nan], [4], [5]]), LABELS, "example 3 of x holds a value that is not a finite"),
        (np.full((6, 2), 1e39), LABELS, "example 0 of x"),
    ],
)
def test_arrays_that_cannot_be_learned_from_are_refused(x, y, complaint):
    with pytest.raises(InputError, match=f"mine: .*{complaint}"):
        from_arrays(x, y, name="mine")


def test_clients_may_be_numbers_or_names():
    x = np.zeros((6, 2))
    numbers = from_arrays(x, LABELS, clients=[7, 7, 3, 3, 9, 9])
    names = from_arrays(x, LABELS, clients=["b", "b", "a", "a", "c", "c"])
    assert numbers.client.tolist() == names.client.tolist() == [1, 1, 0, 0, 2, 2]
    with pytest.raises(InputError, match="one number or name per example, 6 in all"):
        from_arrays(x, LABELS, clients=[1, 2])


def test_an_npz_file_is_a_data_set_by_its_path(tmp_path: Path):
    np.savez(tmp_path / "mnist.npz", x=np.ones((6, 4), np.float32), y=LABELS, client=[0, 0, 0, 1, 1, 1])
    dataset = load(str(tmp_path / "mnist.npz"))
    assert dataset.name == "own:mnist.npz"  # never mistaken for the real one
    assert dataset.client.tolist() == [0, 0, 0, 1, 1, 1]


class Tempting:
    def __reduce__(self) -> object:
        return (pytest.fail, ("something was unpickled",))


def test_an_npz_file_that_is_none_or_lacks_arrays_or_holds_objects_is_refused(tmp_path: Path):
    (tmp_path / "text.npz").write_text("x, y")
    np.savez(tmp_path / "half.npz", x=np.zeros((6, 2)))
    np.savez(tmp_path / "objects.npz", x=np.array([Tempting()] * 6, object), y=LABELS)
    np.save(tmp_path / "array.npy", np.zeros(3))
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    for name, complaint in [
        ("text", "cannot be read"),
        ("half", "must hold the arrays x and y; it has x"),
        ("objects", "never unpickled"),
        ("array", "cannot be read"),
        ("none", "There is no file or folder"),
    ]:
        with pytest.raises(InputError, match=f"{name}.npz.*{complaint}|{complaint}.*{name}.npz"):
            load(str(tmp_path / f"{name}.npz"))


def picture(path: Path, value: int, size: tuple[int, int] = (6, 5), mode: str = "L") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    PIL.new(mode, size, value if mode in "LI" else (value,) * 3).save(path)


def test_a_folder_per_class_is_a_data_set(tmp_path: Path):
    for value, name in enumerate(["dog/2.png", "cat/1.png", "cat/0.png"]):
        picture(tmp_path / "pets" / name, value)
    (tmp_path / "pets" / "cat" / ".DS_Store").touch()
    (tmp_path / "pets" / "cat" / "notes.txt").touch()
    dataset = load(str(tmp_path / "pets"))
    assert (dataset.name, tuple(dataset.x.shape), dataset.classes) == ("own:pets", (3, 1, 5, 6), 2)
    assert dataset.y.tolist() == [0, 0, 1]  # classes in the order of their names
    assert dataset.x[:, 0, 0, 0].tolist() == [2, 1, 0]
    assert dataset.client is None


def test_a_folder_per_client_with_a_folder_per_class_says_whose_each_image_is(tmp_path: Path):
    for name in ("anna/cat/0.png", "anna/dog/0.png", "ben/dog/0.png", "ben/dog/1.png"):
        picture(tmp_path / name, 1)
    dataset = load(str(tmp_path))
    assert dataset.y.tolist() == [0, 1, 1, 1]
    assert dataset.client.tolist() == [0, 0, 1, 1]


def test_one_picture_in_colour_makes_all_of_them_colour(tmp_path: Path):
    picture(tmp_path / "a" / "grey.png", 9)
    picture(tmp_path / "b" / "colour.png", 7, mode="RGB")
    dataset = load(str(tmp_path))
    assert dataset.x[:, :, 0, 0].tolist() == [[9, 9, 9], [7, 7, 7]]


def test_the_odd_image_out_is_named(tmp_path: Path):
    picture(tmp_path / "a" / "0.png", 1)
    picture(tmp_path / "b" / "odd.png", 1, size=(7, 5))
    with pytest.raises(InputError, match=r"odd\.png is 7 x 5 but .*0\.png is 6 x 5"):
        load(str(tmp_path))


def test_images_that_cannot_be_read_or_would_lose_depth_are_named(tmp_path: Path):
    picture(tmp_path / "a" / "0.png", 1)
    broken = tmp_path / "b" / "broken.png"
    broken.parent.mkdir()
    broken.write_bytes((tmp_path / "a" / "0.png").read_bytes()[:40])
    with pytest.raises(InputError, match=r"broken\.png cannot be read as an image"):
        load(str(tmp_path))
    broken.unlink()
    picture(tmp_path / "b" / "deep.tif", 70_000, mode="I")
    with pytest.raises(InputError, match=r"deep\.tif has more than 8 bits"):
        load(str(tmp_path))


def test_folders_without_images_or_of_two_layouts_are_refused(tmp_path: Path):
    (tmp_path / "empty" / "a").mkdir(parents=True)
    with pytest.raises(InputError, match="empty holds no images; there must be a folder per class"):
        load(str(tmp_path / "empty"))
    picture(tmp_path / "mixed" / "cat" / "0.png", 1)
    picture(tmp_path / "mixed" / "anna" / "cat" / "0.png", 1)
    with pytest.raises(InputError, match=r"mixes class/image \(cat\) with client/class/image \(anna\)"):
        load(str(tmp_path / "mixed"))


def test_folders_of_images_without_pillow_say_what_to_install(tmp_path: Path, monkeypatch):
    picture(tmp_path / "a" / "0.png", 1)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(InputError, match=r'pip install "fedlag\[images\]"'):
        load(str(tmp_path))
