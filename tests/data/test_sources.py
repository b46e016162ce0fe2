from __future__ import annotations

import gzip
import lzma
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedlag.data import formats, official, sources
from fedlag.data.download import Download
from fedlag.data.sources import SOURCES, load
from fedlag.errors import InputError

from .official_files import Colour, Damage, Grey, altered, cut_short, digest, gzipped, idx, write, zipped


def test_the_digits_that_come_with_fedlag_need_nothing_and_span_the_same_range_as_other_images():
    digits = load("digits")
    assert tuple(digits.x.shape) == (SOURCES["digits"].size, 1, 8, 8)
    pixels = digits.pixels(slice(None))
    assert (pixels.min(), pixels.max()) == (-1, 1)
    assert digits.y.unique().tolist() == list(range(10))


def test_bytes_are_seen_with_mean_and_standard_deviation_one_half(grey: Grey, tmp_path: Path, monkeypatch):
    write(tmp_path, grey.contents)
    monkeypatch.setitem(SOURCES, "grey", grey.source)
    seen = load("grey", tmp_path).pixels(np.arange(8)).numpy()
    np.testing.assert_allclose(seen[:, 0], (grey.x / 255 - 0.5) / 0.5, atol=1e-6)


@pytest.mark.parametrize("folder", ["", "grey", "GREY/raw"])
@pytest.mark.parametrize("compressed", [False, True])
def test_idx_files_are_found_loose_or_gzipped_flat_or_in_their_usual_folder(grey, tmp_path, folder, compressed):
    write(tmp_path / folder, gzipped(grey.contents) if compressed else grey.contents)
    x, y = official.read(grey.source, tmp_path)
    np.testing.assert_array_equal(x[:, 0], grey.x)  # train first, then test: one pool
    np.testing.assert_array_equal(y, grey.y)


def test_emnist_is_read_from_its_zip_and_stands_upright(grey: Grey, tmp_path: Path):
    archive = zipped(gzipped(grey.contents), folder="gzip")
    download = Download("http://127.0.0.1:9/gzip.zip", len(archive), digest(archive))
    write(tmp_path / "grey", {"gzip.zip": archive})
    x, y = official.read(replace(grey.source, downloads=(download,), transposed=True), tmp_path)
    np.testing.assert_array_equal(x[:, 0], grey.x.transpose(0, 2, 1))
    np.testing.assert_array_equal(y, grey.y)


@pytest.mark.parametrize("form", ["bins", "archive"])
def test_cifar_is_read_from_its_bins_or_its_archive(colour: Colour, tmp_path: Path, form: str):
    write(tmp_path, colour.contents if form == "bins" else {"colour.tar.gz": colour.archive})
    x, y = official.read(colour.source, tmp_path)
    np.testing.assert_array_equal(x, colour.x)
    np.testing.assert_array_equal(y, colour.y)


def test_of_cifar100s_two_labels_the_fine_one_is_taken():
    image = np.arange(3072, dtype=np.uint32).astype(np.uint8)
    record = bytes([7, 42]) + image.tobytes()
    x, y = formats.cifar100([formats.File(Path("train.bin"), record * 2)])
    assert y.tolist() == [42, 42]
    np.testing.assert_array_equal(x[1].transpose(2, 0, 1).ravel(), image)


@pytest.mark.parametrize("damage", [cut_short, altered])
@pytest.mark.parametrize("name", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_damaged_idx_file_is_named_and_refused(grey, tmp_path, name: str, damage: Damage, compressed: bool):
    contents = gzipped(grey.contents) if compressed else dict(grey.contents)
    name += ".gz" if compressed else ""
    write(tmp_path, contents | {name: damage(contents[name])})
    with pytest.raises(InputError, match=f"{name}.* (cut short|altered)"):
        official.read(grey.source, tmp_path)


def test_what_differs_is_said(grey: Grey, tmp_path: Path):
    images = grey.contents["train-images-idx3-ubyte"]
    write(tmp_path, grey.contents | {"train-images-idx3-ubyte": cut_short(images)})
    with pytest.raises(InputError, match="53 bytes of data where its header promises 60"):
        official.read(grey.source, tmp_path)
    write(tmp_path, {"train-images-idx3-ubyte": images[:-1] + bytes([images[-1] ^ 1])})
    with pytest.raises(InputError, match=f"images are not the official ones.*instead of {digest(grey.x[:5])}"):
        official.read(grey.source, tmp_path)
    write(tmp_path, {"train-images-idx3-ubyte": idx(grey.x[:4])})
    with pytest.raises(InputError, match=r"\(4, 4, 3\).*instead of \(5, 4, 3\)"):
        official.read(grey.source, tmp_path)


@pytest.mark.parametrize(("damage", "what"), [(cut_short, "bytes instead of"), (altered, "its SHA-256 is")])
def test_a_damaged_archive_is_refused_before_it_is_opened(colour, tmp_path, damage: Damage, what: str):
    write(tmp_path, {"colour.tar.gz": damage(colour.archive)})
    with pytest.raises(InputError, match=f"colour.tar.gz.*{what}"):
        official.read(colour.source, tmp_path)


@pytest.mark.parametrize("damage", [cut_short, altered])
def test_a_damaged_cifar_batch_is_named_and_refused(colour: Colour, tmp_path: Path, damage: Damage):
    write(tmp_path, colour.contents | {"data_batch_2.bin": damage(colour.contents["data_batch_2.bin"])})
    with pytest.raises(InputError, match=r"data_batch_2.bin"):
        official.read(colour.source, tmp_path)


def save_repacked(grey: Grey, folder: Path) -> None:
    np.savez(folder / "grey_train.npz", x=xz(grey.x[:5]), y=grey.y[:5])
    np.savez(folder / "grey_test.npz", x=xz(grey.x[5:]), y=grey.y[5:])


def xz(x: np.ndarray) -> np.ndarray:
    return np.frombuffer(lzma.compress(x.tobytes()), np.uint8)


@pytest.fixture
def square(grey: Grey) -> Grey:
    """`grey` with images of 28 x 28, the only size that is repacked."""
    grey.x = np.random.default_rng(2).integers(0, 256, (8, 28, 28), np.uint8)
    train, test = grey.source.pieces
    pieces = (train._replace(x=digest(grey.x[:5])), test._replace(x=digest(grey.x[5:])))
    grey.source = replace(grey.source, shape=(28, 28), pieces=pieces)
    return grey


def test_repacked_files_hold_the_same_and_are_checked_the_same(square: Grey, tmp_path: Path):
    save_repacked(square, tmp_path)
    x, y = official.read(square.source, tmp_path)
    np.testing.assert_array_equal(x[:, 0], square.x)
    np.testing.assert_array_equal(y, square.y)

    np.savez(tmp_path / "grey_test.npz", x=xz(square.x[5:] ^ 1), y=square.y[5:])
    with pytest.raises(InputError, match=r"grey_test.npz: the images are not the official ones"):
        official.read(square.source, tmp_path)


@pytest.mark.parametrize("damage", [cut_short, altered])
def test_a_damaged_repacked_file_is_named_and_refused(square: Grey, tmp_path: Path, damage: Damage):
    save_repacked(square, tmp_path)
    file = tmp_path / "grey_train.npz"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(InputError, match=r"grey_train.npz"):
        official.read(square.source, tmp_path)


class Tempting:
    def __reduce__(self) -> object:
        return (pytest.fail, ("something was unpickled",))


def test_nothing_is_ever_unpickled(square: Grey, tmp_path: Path):
    save_repacked(square, tmp_path)
    np.savez(tmp_path / "grey_train.npz", x=np.array([Tempting()], object), y=square.y[:5])
    with pytest.raises(InputError, match=r"grey_train.npz"):
        official.read(square.source, tmp_path)


def test_compressed_images_without_pillow_say_what_to_install(colour, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    np.savez(tmp_path / "strips.npz", s000=np.zeros(3, np.uint8), y=np.zeros(1, np.uint8))
    with pytest.raises(InputError, match=r'pip install "fedlag\[images\]"'):
        formats.repacked(tmp_path / "strips.npz")


def test_a_missing_data_set_says_where_it_was_looked_for_and_what_to_do(tmp_path: Path):
    with pytest.raises(InputError) as error:
        load("mnist", tmp_path)
    told = (
        str(tmp_path),
        "MNIST/raw",
        "train-images-idx3-ubyte.gz",
        "mnist_train.npz",
        "FEDLAG_DATA",
        "data.root",
    )
    assert all(words in str(error.value) for words in told)


def test_a_folder_that_holds_a_part_of_a_data_set_offers_it_under_its_own_name(tmp_path: Path):
    for name in ("cifar100_train.npz", "cifar100_test.npz", "emnist_balanced_test_part.npz"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=r"40,000 of its 60,000 images.*ask for cifar100_part"):
        load("cifar100", tmp_path)
    with pytest.raises(InputError, match="ask for emnist_balanced_part"):
        load("emnist_balanced", tmp_path)
    with pytest.raises(InputError, match="emnist_balanced_part cannot be downloaded"):
        load("emnist_balanced_part")


def test_the_environment_names_the_folder_unless_root_does(grey: Grey, tmp_path: Path, monkeypatch):
    monkeypatch.setitem(SOURCES, "grey", grey.source)
    write(tmp_path / "here", grey.contents)
    monkeypatch.setenv("FEDLAG_DATA", str(tmp_path / "here"))
    assert len(load("grey")) == 8
    with pytest.raises(InputError, match="elsewhere"):
        load("grey", tmp_path / "elsewhere")


def test_without_a_folder_the_files_are_fetched_into_the_cache_and_read_there(colour, tmp_path, monkeypatch):
    monkeypatch.setitem(SOURCES, "colour", colour.source)
    monkeypatch.setattr(sources, "cache", lambda: tmp_path)
    write(tmp_path / "colour", {"colour.tar.gz": colour.archive})  # fetched before: no network is needed
    np.testing.assert_array_equal(load("colour").x, colour.x)


def test_an_unreachable_network_is_one_sentence(tmp_path: Path, monkeypatch, colour: Colour):
    monkeypatch.setitem(SOURCES, "colour", colour.source)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(sources, "cache", lambda: tmp_path)
    with pytest.raises(
        InputError, match=r"Could not download .*colour.tar.gz \(ConnectionError\): .*data.root or FEDLAG"
    ):
        load("colour")


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(InputError, match="Did you mean 'fashion_mnist'"):
        load("fashion-mnist")


def test_every_digest_is_whole_and_every_size_the_published_one():
    for source in SOURCES.values():
        hashes = [download.sha256 for download in source.downloads]
        hashes += [value for piece in source.pieces for value in (piece.x, piece.y) if value]
        assert all(len(value) == 64 and int(value, 16) for value in hashes)
        assert len(set(hashes)) == len(hashes)
    published = {"digits": 1797, "mnist": 70_000, "fashion_mnist": 70_000, "cifar10": 60_000, "cifar100": 60_000}
    published |= {"emnist_byclass": 814_255, "emnist_balanced": 131_600}
    assert {name: SOURCES[name].size for name in published} == published


@pytest.mark.parametrize(
    ("name", "shape", "classes", "smallest", "largest"),
    [
        ("mnist", (70_000, 1, 28, 28), 10, 6313, 7877),
        ("cifar10", (60_000, 3, 32, 32), 10, 6000, 6000),
        ("cifar100_part", (40_000, 3, 32, 32), 100, 400, 400),
        ("emnist_balanced_part", (14_246, 1, 28, 28), 47, 290, 320),
    ],
)
def test_the_real_data_are_read_whole(real_data: Path, name, shape, classes, smallest, largest):
    if "cifar" in name:
        pytest.importorskip("PIL", reason="CIFAR from .npz needs Pillow")
    dataset = load(name, real_data)
    counts = dataset.y.bincount()
    assert (dataset.name, tuple(dataset.x.shape), dataset.classes) == (name, shape, classes)
    assert (len(counts), int(counts.min()), int(counts.max())) == (classes, smallest, largest)


def test_real_mnist_is_the_same_from_idx_files_and_one_pixel_more_is_noticed(real_data: Path, tmp_path: Path):
    known = load("mnist", real_data)
    x, y = known.x[:, 0].numpy(), known.y.numpy().astype(np.uint8)
    arrays = (x[:60_000], y[:60_000], x[60_000:], y[60_000:])
    names = [name for piece in SOURCES["mnist"].pieces for name in piece.files]
    write(tmp_path, {name: idx(array) for name, array in zip(names, arrays, strict=True)})
    assert load("mnist", tmp_path).x.equal(known.x)

    x[0, 0, 0] ^= 1
    (tmp_path / names[0]).unlink()
    (tmp_path / f"{names[0]}.gz").write_bytes(gzip.compress(idx(x[:60_000]), compresslevel=0))
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte\.gz.*images are not the official ones"):
        load("mnist", tmp_path)
