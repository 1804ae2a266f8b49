"""What can be read on an open page: contrasts of its texts, by its pixels, and of its marks."""

import base64
import io

import numpy as np
from PIL import Image

from pathkernel_views.colours import contrast

_SCALE = 2  # pixels of a picture for one of the page

TEXTS = """
[...document.querySelectorAll("body *")].filter((e) => {
  const { width, height, x } = e.getBoundingClientRect();
  const plain = getComputedStyle(e).stroke === "none"
    && e.checkVisibility({ opacityProperty: true });
  return !e.children.length && e.textContent.trim() && width && height && x >= 0 && plain
    && !e.closest("script, style, noscript, option");
}).map((e) => {
  const { x, y, width, height } = e.getBoundingClientRect();
  return [e.textContent, x + scrollX, y + scrollY, width, height];
})
"""

# a name without a stroke is hidden, its halo stays
HIDE = """
document.head.append(Object.assign(document.createElement("style"), { id: "hide", textContent:
  "* { color: transparent !important; transition: none !important; }"
  + " svg text:not([stroke]) { visibility: hidden; }" }))
"""

MARKS = """
[...document.querySelectorAll(".plot .role-mark :is(path, line, rect)")].filter((e) => {
  const group = e.closest(".role-mark");
  // the cells of a map have colours that a scale has mixed
  return !group.matches(".mark-area") && !e.getAttribute("fill")?.startsWith("rgb");
}).map((e) => {
  const style = getComputedStyle(e);
  const ink = (name) => [style[name], style.opacity * style[`${name}Opacity`]];
  return [e.getAttribute("aria-label") ?? e.closest(".role-mark").getAttribute("class"),
    ["d", "x2", "y2", "transform"].map((name) => e.getAttribute(name)).join(), ink("fill"),
    ink("stroke")];
})
"""


def text_contrasts(browser):
    """Contrast of every text with what lies under it, at nearly all of its pixels."""
    texts = browser.evaluate(TEXTS)
    shown = _picture(browser)
    browser.evaluate(f"void {HIDE}")
    hidden = _picture(browser)
    browser.evaluate("document.getElementById('hide').remove()")
    of_texts = []
    for text, *box in texts:
        x, y, width, height = (round(_SCALE * number) for number in box)
        ink, ground = (picture[y : y + height, x : x + width] for picture in (shown, hidden))
        is_glyph = np.abs(ink.astype(int) - ground).sum(axis=-1) > 0
        if not is_glyph.any():
            of_texts.append((text, 1.0))
            continue
        ink, ground = _luminance(ink[is_glyph]), _luminance(ground[is_glyph])
        # edges of letters are mixed with what lies under them: the letter is where it differs most
        letter = ink[np.argmax(_ratio(ink, ground))]
        of_texts.append((text, float(np.quantile(_ratio(letter, ground), 0.05))))
    return of_texts


def mark_contrasts(browser, ground):
    """Contrast of every mark with the ground, but for bands, cells of maps, and seams of lines."""
    marks, of_shapes = [], {}
    for name, shape, *inks in browser.evaluate(MARKS):
        visible = [_over(*ink, ground) for ink in inks if ink[0] != "none" and ink[1] > 0.25]
        if visible:
            value = max(contrast(colour, ground) for colour in visible)
            of_shapes[shape] = max(value, of_shapes.get(shape, 0.0))
            marks.append((name, shape))
    # a seam is drawn under a line of the same shape
    return [(name, of_shapes[shape]) for name, shape in marks]


def show_whole(browser, width):
    """Make the window as high as the page, so that a picture shows all of it."""
    browser.call("Emulation.setScrollbarsHidden", hidden=True)
    size = {"width": width, "deviceScaleFactor": _SCALE, "mobile": False}
    browser.call("Emulation.setDeviceMetricsOverride", height=900, **size)
    height = browser.evaluate("document.documentElement.scrollHeight")
    browser.call("Emulation.setDeviceMetricsOverride", height=height, **size)


def _picture(browser):
    data = browser.call("Page.captureScreenshot", optimizeForSpeed=True)["data"]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB"))


def _over(colour, opacity, ground):
    """Colour of a style, such as rgb(0, 10, 20), over the ground."""
    parts = [float(part) for part in colour[colour.index("(") + 1 : -1].split(",")]
    alpha = opacity * (parts[3] if len(parts) > 3 else 1.0)
    below = [int(ground[start : start + 2], 16) for start in (1, 3, 5)]
    mixed = [b + (p - b) * alpha for p, b in zip(parts[:3], below, strict=True)]
    return "#" + "".join(f"{round(part):02x}" for part in mixed)


def _luminance(pixels):
    parts = pixels / 255
    light = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return light @ [0.2126, 0.7152, 0.0722]


def _ratio(one, other):
    return (np.maximum(one, other) + 0.05) / (np.minimum(one, other) + 0.05)
