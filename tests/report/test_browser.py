"""The report as a person meets it: in Chromium, without a network."""

import shutil

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed; on Debian: apt install chromium")


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; it is in fedlag[dev]")
    with sync_api.sync_playwright() as playwright:
        # Containers have no sandbox for root; the only page opened is our own.
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def visit(browser, page):
    """Opens the page without a network; in the end nothing may have been asked for, and nothing complained."""
    complaints, contexts = [], []

    def visit(width=1200, **settings):
        context = browser.new_context(offline=True, viewport={"width": width, "height": 900}, **settings)
        contexts.append(context)
        opened = context.new_page()
        opened.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        opened.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        opened.on(
            "request",
            lambda request: request.url.startswith(("file:", "data:")) or complaints.append(f"request: {request.url}"),
        )
        opened.goto(page.as_uri())
        opened.wait_for_selector("html[data-drawn]")
        return opened

    yield visit
    for context in contexts:
        context.close()
    assert complaints == []


CHARTS = ("curves", "gains", "holdings", "conflicts", "matrix", "choices", "costs")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 360])
def test_every_chart_is_drawn_and_fits(visit, scheme, width):
    opened = visit(width, color_scheme=scheme)
    for name in CHARTS:
        box = opened.locator(f"#{name} svg.marks").bounding_box()
        assert box["width"] > 200
        assert box["height"] > 50
        assert 0 <= box["x"] <= box["x"] + box["width"] <= width
        assert opened.locator(f"#{name} [role=graphics-document]").get_attribute("aria-label")
    assert opened.evaluate("document.documentElement.scrollWidth") <= width


def test_a_click_on_the_conflict_map_shows_the_pairs_of_that_layer_and_round(visit):
    opened = visit()
    before = opened.locator("#reading").inner_text()
    cells = opened.locator("#conflicts .mark-rect path")
    first = cells.first
    matrix = opened.locator("#matrix svg.marks").inner_html()
    first.click()
    assert "round 1:" in opened.locator("#reading").inner_text() != before
    assert opened.locator("#round").input_value() == "0"
    opened.wait_for_function("old => document.querySelector('#matrix svg.marks').innerHTML !== old", arg=matrix)


def test_the_keyboard_reaches_everything(visit):
    opened = visit()
    opened.locator("#round").focus()
    opened.keyboard.press("Home")
    assert "round 1:" in opened.locator("#reading").inner_text()
    opened.keyboard.press("ArrowRight")
    assert "round 2:" in opened.locator("#reading").inner_text()
    assert opened.locator("#round").get_attribute("aria-valuetext") == "round 2"
    opened.locator("#layer").focus()
    layer = opened.locator("#layer").input_value()
    opened.keyboard.press(
        "ArrowUp" if opened.evaluate("document.querySelector('#layer').selectedIndex") else "ArrowDown"
    )
    assert opened.locator("#layer").input_value() != layer
    assert f"Layer {opened.locator('#layer').input_value()}," in opened.locator("#reading").inner_text()


def test_the_theme_follows_the_system_and_can_be_chosen(visit):
    opened = visit(color_scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    grid = "document.querySelector('#curves .mark-rule line').getAttribute('stroke')"
    dark, dark_grid = opened.evaluate(paper), opened.evaluate(grid)
    opened.locator("#theme").click()
    assert opened.locator("#theme").inner_text() == "Theme: light"
    assert opened.evaluate(paper) != dark
    opened.wait_for_function(f"old => {grid} !== old", arg=dark_grid)
    opened.locator("#theme").click()
    assert opened.evaluate(paper) == dark


def test_methods_can_be_hidden_and_other_gains_shown(visit):
    opened = visit()
    lines = opened.locator("#curves .mark-line path")
    before = lines.count()
    opened.locator("[data-chart=curves] label", has_text="Local").click()
    opened.wait_for_function(
        "left => document.querySelectorAll('#curves .mark-line path').length === left", arg=before - 1
    )
    opened.locator("#clients select").select_option("FedAvg")
    said = opened.locator("[data-if='gains.method'].reading:visible")
    assert said.inner_text().startswith("FedAvg:")
    opened.locator("#clients summary", has_text="numbers").click()
    assert opened.locator("#each tr").count() == 12  # six clients, two seeds
