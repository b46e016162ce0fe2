import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from fedlag.errors import InputError
from fedlag.nets import NETS, NORMS, build, choose
from fedlag.nets.modules import Block

torch.set_num_threads(1)

DOCS = (Path(__file__).parent.parent / "docs" / "models.md").read_text(encoding="utf-8")
MNIST, CIFAR = (1, 28, 28), (3, 32, 32)


def parameters(net):
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "classes", "options", "expected"),
    [
        ("mlp", MNIST, 10, {}, 79_510),
        ("lenet", MNIST, 10, {}, 44_426),
        ("lenet", CIFAR, 10, {}, 62_006),
        ("cnn", MNIST, 10, {}, 582_026),
        ("cnn", CIFAR, 10, {}, 878_538),
        ("cnn20", CIFAR, 10, {}, 1_341_226),
        ("resnet9", MNIST, 10, {}, 1_695_210),
        ("resnet9", MNIST, 62, {}, 1_701_918),
        ("resnet9", MNIST, 10, {"shortcut": "free"}, 1_651_306),
        ("resnet20w", CIFAR, 10, {}, 4_425_162),
        ("resnet20w", CIFAR, 100, {}, 4_436_772),
        ("resnet20w", CIFAR, 10, {"shortcut": "free"}, 4_383_434),
        ("resnet18", CIFAR, 10, {}, 11_173_962),
    ],
)
def test_parameter_counts_are_those_of_the_papers_and_of_the_documentation(name, shape, classes, options, expected):
    assert parameters(build(name, shape, classes, **options)) == expected
    assert f"{expected:,}" in DOCS


def test_resnet18_with_a_stem_for_large_images_is_the_one_of_11_181_642_parameters():
    net = build("resnet18", CIFAR, 10)
    net.body.conv = nn.Conv2d(3, 64, kernel_size=7, stride=2, padding=3, bias=False)
    assert parameters(net) == 11_181_642
    assert "11,181,642" in DOCS


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", [name for name in NETS if name != "resnet18"])
def test_every_network_gives_one_score_per_class_with_every_norm(name, norm):
    net = build(name, (2, 20, 17), 7, norm=norm)
    assert isinstance(net.head, nn.Linear)
    features = net.body(torch.randn(3, 2, 20, 17))
    assert features.shape == (3, net.head.in_features)
    scores = net.head(features)
    assert scores.shape == (3, 7)
    assert scores.isfinite().all()


def test_resnet18_gives_one_score_per_class():
    assert build("resnet18", CIFAR, 5)(torch.randn(2, *CIFAR)).shape == (2, 5)


@pytest.mark.parametrize("name", [name for name in NETS if name != "resnet18"])
def test_group_norm_trains_on_a_single_example(name):
    side = NETS[name].smallest
    net = build(name, (1, side, side), 3, norm="group").train()
    net(torch.randn(1, 1, side, side)).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


def test_every_image_size_from_the_smallest_allowed_works():
    for name, description in NETS.items():
        side = description.smallest
        assert build(name, (1, side, side), 2).eval()(torch.randn(1, 1, side, side)).shape == (1, 2)
    assert (NETS["cnn"].smallest, NETS["cnn20"].smallest) == (16, 8)


def owners(net):
    return [module for module in net.modules() if next(module.parameters(recurse=False), None) is not None]


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("name", ["lenet", "cnn", "cnn20", "mlp", "resnet9", "resnet20w"])
def test_a_norm_is_registered_right_after_the_layer_it_normalises_and_replaces_its_bias(name, norm):
    modules = owners(build(name, CIFAR, 10, norm=norm))
    layers = [module for module in modules if isinstance(module, nn.Conv2d | nn.Linear)]
    normalised = 0
    for module, following in zip(modules, [*modules[1:], None], strict=True):
        if module in layers:
            width = module.weight.shape[0]
            follows = following is not None and following not in layers
            assert (module.bias is None) == follows
            if follows:
                assert getattr(following, "num_features", getattr(following, "num_channels", None)) == width
                normalised += 1
    fully_connected = len(NETS[name].hidden) if name.startswith("resnet") else 0
    assert normalised == len(layers) - 1 - fully_connected


def test_without_norm_every_layer_has_a_bias():
    modules = owners(build("resnet9", MNIST, 10, norm="none"))
    assert all(isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None for module in modules)


def test_a_free_shortcut_keeps_every_second_pixel_and_adds_channels_of_zeros():
    block = Block(2, 5, stride=2, norm="none", shortcut="free")
    x = torch.randn(3, 2, 7, 6)
    shortcut = block.shortcut(x)
    assert torch.equal(shortcut[:, :2], x[:, :, ::2, ::2])
    assert torch.equal(shortcut[:, 2:], torch.zeros(3, 3, 4, 3))
    assert torch.equal(block(x), torch.relu(block.residual(x) + shortcut))


def test_hidden_says_the_fully_connected_layers():
    def widths(**options):
        return [m.out_features for m in build("mlp", MNIST, 10, **options).modules() if isinstance(m, nn.Linear)]

    assert widths() == [100, 10]
    assert widths(hidden=[30, 20]) == [30, 20, 10]
    assert widths(hidden=()) == [10]


@pytest.mark.parametrize("name", ["mlp", "cnn20", "resnet9"])
def test_the_same_seed_gives_the_same_bits_and_another_seed_others(name):
    def weights(seed):
        return build(name, (1, 16, 16), 4, seed=seed).state_dict()

    first = weights(3)
    torch.randn(7)
    assert all(torch.equal(value, first[key]) for key, value in weights(3).items())
    assert not torch.equal(first["head.weight"], weights(4)["head.weight"])


def test_the_number_of_classes_does_not_change_the_initial_body():
    small, large = (build("mlp", MNIST, classes).body.state_dict() for classes in (2, 10))
    assert all(torch.equal(value, large[key]) for key, value in small.items())


def test_building_leaves_other_random_numbers_alone():
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    build("resnet9", MNIST, 10, seed=1)
    assert torch.equal(torch.rand(4), expected)


def test_nothing_is_done_in_place():
    assert not any(getattr(module, "inplace", False) for name in NETS for module in build(name, CIFAR, 2).modules())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: build("resnet8", MNIST, 10), ["resnet8", "Did you mean 'resnet18'", "mlp"]),
        (lambda: build("cnn", MNIST, 10, norm="layer"), ["norm", "layer", "batch", "group", "none"]),
        (lambda: build("cnn", (1, 8, 8), 10), ["cnn", "(1, 8, 8)", "16x16", "cnn20"]),
        (lambda: build("cnn20", (1, 28, 7), 10), ["cnn20", "(1, 28, 7)", "8x8", "mlp"]),
        (lambda: build("cnn20", (28, 28), 10), ["shape", "(28, 28)", "channels, height, width"]),
        (lambda: build("mlp", (1, 0, 28), 10), ["shape", "(1, 0, 28)"]),
        (lambda: build("mlp", MNIST, 0), ["classes", "0"]),
        (lambda: choose("mlp", hidden=100), ["hidden", "100", "(256, 128)"]),
        (lambda: choose("mlp", hidden=(100, 0)), ["hidden", "(100, 0)"]),
        (lambda: choose("cnn", shortcut="free"), ["cnn", "shortcut", "resnet9"]),
        (lambda: choose("resnet9", shortcut="none"), ["shortcut", "none", "projection", "free"]),
    ],
)
def test_what_cannot_be_built_is_named_with_what_can(call, words):
    with pytest.raises(InputError) as refused:
        call()
    assert all(word in str(refused.value) for word in words), refused.value


def test_choosing_an_architecture_does_not_import_torch():
    code = "import sys; from fedlag.nets import choose; choose('cnn', norm='group'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_documentation_names_every_model_and_its_examples_run():
    examples = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)
    assert examples
    shared: dict[str, object] = {}
    for example in examples:
        exec(example, shared)
    assert all(f"`{name}`" in DOCS for name in NETS)
