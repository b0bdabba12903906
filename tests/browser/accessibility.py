"""What every page owes everybody: nothing that axe finds serious, light and dark, and no scrolling sideways on a phone."""

from __future__ import annotations

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

#: The narrowest phone, CSS pixels: what a desktop shows at 400 % is as wide.
NARROW = 320
#: Asked of the element that has the focus; null on none. It is shown when it has an outline and is in sight.
_FOCUSED = """() => {
  const one = document.activeElement;
  if (!one || one === document.body) return null;
  const box = one.getBoundingClientRect(), frame = one.closest(".attach") || one;
  const outlined = getComputedStyle(frame).outlineStyle !== "none";
  return {what: one.outerHTML.slice(0, 90), shown: outlined && box.bottom > 0 && box.top < innerHeight};
}"""

#: What makes the page scroll sideways, the first five; [] when nothing does.
_TOO_WIDE = """(narrow) => document.documentElement.scrollWidth <= narrow ? [] :
  [...document.querySelectorAll("main *")].filter((one) => one.getBoundingClientRect().right > narrow)
    .map((one) => one.outerHTML.slice(0, 80)).slice(0, 5)"""


def accessible(page: Page) -> None:
    """Fail on what keeps people out, in the scheme the page is in now."""
    found = [rule for rule in Axe().run(page).response["violations"] if rule["impact"] in {"serious", "critical"}]
    assert not [f"{rule['id']}: {rule['nodes'][0]['html'][:120]}" for rule in found]


def accessible_in_both(page: Page) -> None:
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        accessible(page)


def fits_a_phone(page: Page) -> None:
    page.set_viewport_size({"width": NARROW, "height": 700})
    page.reload()  # a phone draws its charts as wide as it is
    wide = page.evaluate(_TOO_WIDE, NARROW)
    assert not wide, f"{page.url}: {wide}"


def shows_the_focus(page: Page, most: int = 80) -> int:
    """Step through the page by Tab, up to ``most`` times; how many places there were. Fails where the focus is not seen."""
    page.evaluate("document.activeElement.blur()")
    steps, lost = 0, []
    for _ in range(most):
        page.keyboard.press("Tab")
        at = page.evaluate(_FOCUSED)
        if at is None:
            break
        steps += 1
        if not at["shown"]:
            lost.append(at["what"])
    assert not lost
    return steps
