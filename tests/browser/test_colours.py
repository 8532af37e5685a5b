"""What the colours of tokens are, as painted: readable, ordered, and apart for everyone.

The numbers are computed again from what the browser says, not from the style sheet.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import Watched

pytestmark = pytest.mark.browser

BINS = tuple(f"b{step}" for step in range(8))
VERSIONS = ("v0", "v1", "v2", "v3", "v4", "v5", "vx")
REASONS = ("mt", "mr", "mq", "mp")
# δ below, and above; between the two it is paper.
OFF = ("d0", "d1", "d2", "d4", "d5", "d6")
LEAST_CONTRAST = 4.5
LEAST_DISTANCE = 0.04

# Linear RGB as seen by dichromats: Viénot, Brettel and Mollon (1999) for the first two,
# Machado, Oliveira and Fernandes (2009), severity 1, for the third.
SEEN_BY = {
    "protan": (
        (0.11238, 0.88762, 0.0),
        (0.11238, 0.88762, -0.0),
        (0.00401, -0.00401, 1.0),
    ),
    "deutan": (
        (0.29275, 0.70725, 0.0),
        (0.29275, 0.70725, -0.0),
        (-0.02234, 0.02234, 1.0),
    ),
    "tritan": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}

PAINTED = """(names) => {
  const probe = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgb = (colour) => {
    probe.clearRect(0, 0, 1, 1); probe.fillStyle = colour; probe.fillRect(0, 0, 1, 1);
    return [...probe.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const pane = document.querySelector(".agent .k");
  return Object.fromEntries(names.map((name) => {
    const token = document.createElement("i");
    token.className = name; token.textContent = "x"; pane.append(token);
    const style = getComputedStyle(token);
    const found = [rgb(style.color), rgb(style.backgroundColor)];
    token.remove();
    return [name, found];
  }));
}"""

Colour = tuple[float, float, float]


def linear(colour: Any) -> Colour:
    """sRGB bytes as linear light."""
    red, green, blue = (
        value / 255 / 12.92
        if value / 255 <= 0.04045
        else ((value / 255 + 0.055) / 1.055) ** 2.4
        for value in colour
    )
    return red, green, blue


def luminance(colour: Any) -> float:
    """Relative luminance as WCAG has it."""
    red, green, blue = linear(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: Any, other: Any) -> float:
    """Contrast of two colours as WCAG has it."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def through(matrix: Any, colour: Colour) -> Colour:
    """A colour through a matrix, within what a screen can show."""
    red, green, blue = (
        min(1.0, max(0.0, sum(a * b for a, b in zip(row, colour, strict=True))))
        for row in matrix
    )
    return red, green, blue


def oklab(colour: Colour) -> Colour:
    """Linear RGB in OKLab."""
    red, green, blue = colour
    long = (0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue) ** (1 / 3)
    middle = (0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue) ** (1 / 3)
    short = (0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short,
    )


def distance(one: Colour, other: Colour) -> float:
    """How far apart two colours look."""
    pairs = zip(oklab(one), oklab(other), strict=True)
    return float(sum((a - b) ** 2 for a, b in pairs) ** 0.5)


def painted(page: Page, names: tuple[str, ...]) -> dict[str, Any]:
    """Text and fill of tokens of these classes, as computed in the pane."""
    found: dict[str, Any] = page.evaluate(PAINTED, list(names))
    return found


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_fill_is_readable(site: Watched, scheme: str) -> None:
    page = site.visit("/rollouts/{small}/tokens", color_scheme=scheme)
    found = painted(page, (*BINS, *VERSIONS, *REASONS, *OFF))
    ratios = {name: contrast(text, fill) for name, (text, fill) in found.items()}
    assert {name: ratio for name, ratio in ratios.items() if ratio < LEAST_CONTRAST} == {}
    # A class that paints nothing would pass as paper.
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    fills = [f"rgb({', '.join(map(str, fill))})" for _, fill in found.values()]
    assert paper not in fills


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_bins_go_one_way_and_stay_apart_for_everyone(site: Watched, scheme: str) -> None:
    page = site.visit("/rollouts/{small}/tokens", color_scheme=scheme)
    fills = [linear(fill) for _, fill in painted(page, BINS).values()]
    lightness = [oklab(fill)[0] for fill in fills]
    assert lightness == sorted(lightness, reverse=scheme == "light")
    near = {}
    for who, matrix in SEEN_BY.items():
        seen = [through(matrix, fill) for fill in fills]
        for (one, a), (other, b) in combinations(enumerate(seen), 2):
            if distance(a, b) < LEAST_DISTANCE:
                near[f"{who} b{one} b{other}"] = round(distance(a, b), 4)
    assert near == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_weights_and_reasons_have_fills_of_their_own(site: Watched, scheme: str) -> None:
    page = site.visit("/rollouts/{small}/tokens", color_scheme=scheme)
    for names in (VERSIONS, REASONS, OFF):
        fills = [tuple(fill) for _, fill in painted(page, names).values()]
        assert len(set(fills)) == len(names)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_forced_colours_keep_the_fills_and_what_has_none_is_readable(
    site: Watched, scheme: str, theme: str
) -> None:
    page = site.open(forced_colors="active", color_scheme=scheme)
    page.context.add_cookies([{"name": "theme", "value": theme, "url": site.url}])
    page.goto(site.address("/rollouts/{forked}/tokens"))
    page.wait_for_selector("html[data-ready]")
    found = painted(page, (*BINS, *VERSIONS, *REASONS))
    # Told apart by fill, and by shape where the metric is not: hatch, outline, underline.
    assert len({tuple(fill) for name, (_, fill) in found.items() if name in BINS}) == len(BINS)
    low = {n: contrast(*both) for n, both in found.items() if contrast(*both) < LEAST_CONTRAST}
    assert low == {}
    plain, paper = page.evaluate(
        """() => {
          const probe = document.createElement("canvas")
            .getContext("2d", {willReadFrequently: true});
          const rgb = (colour) => {
            probe.fillStyle = colour; probe.fillRect(0, 0, 1, 1);
            return [...probe.getImageData(0, 0, 1, 1).data].slice(0, 3);
          };
          const token = document.createElement("i");
          document.querySelector(".agent .k").append(token);
          const box = document.createElement("div");
          box.style.backgroundColor = "Canvas";
          document.body.append(box);
          const of = getComputedStyle;
          return [rgb(of(token).color), rgb(of(box).backgroundColor)];
        }"""
    )
    assert contrast(plain, paper) >= LEAST_CONTRAST
    hatched = page.evaluate(
        """() => { const token = document.createElement("i"); token.className = "b2 x";
          document.querySelector(".agent .k").append(token);
          return getComputedStyle(token).backgroundImage; }"""
    )
    assert "repeating-linear-gradient" in hatched
    assert (
        page.evaluate("getComputedStyle(document.querySelector('.key.hatch')).outlineStyle")
        == "solid"
    )


GLYPHS = """() => {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 40;
  const pen = canvas.getContext("2d", {willReadFrequently: true});
  const style = getComputedStyle(document.querySelector(".toks"));
  const draw = (text) => {
    pen.clearRect(0, 0, 40, 40);
    pen.font = `24px ${style.fontFamily}`;
    pen.fillText(text, 2, 30);
    return [...pen.getImageData(0, 0, 40, 40).data];
  };
  const tofu = ["\\u{10fffd}", "\\u{e0fff}"].map((text) => draw(text).join());
  return ["漢", "字", "한", "か", "🦊", "🚒", "｜", "▪", "↵", "…"].map((text) => {
    const data = draw(text);
    let coloured = 0;
    for (let i = 0; i < data.length; i += 4) {
      if (data[i + 3] && Math.max(data[i], data[i + 1], data[i + 2]) > 60) coloured += 1;
    }
    return {text, drawn: data.some((value) => value > 0) && !tofu.includes(data.join()),
      coloured, picture: data.join()};
  });
}"""


def test_cjk_and_emoji_are_drawn_not_boxed(site: Watched) -> None:
    """The fonts are there that the pictures of this project, and its readers, need."""
    page = site.visit("/rollouts/{small}/tokens")
    found = page.evaluate(GLYPHS)
    assert [each["text"] for each in found if not each["drawn"]] == []
    assert len({each["picture"] for each in found}) == len(found)
    assert all(each["coloured"] > 50 for each in found if each["text"] in "🦊🚒")
