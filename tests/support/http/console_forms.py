"""Find the forms of the console by their titles, like a reader."""

import json

from tests.support.http.chromium import Page


async def open_form(page: Page, title: str) -> str:
    """Open the form with this title; return the selector of its content."""
    await page.until(
        "{ document.querySelector('details[data-tested]')?.removeAttribute('data-tested');"
        " const found = [...document.querySelectorAll('details.action')]"
        f".find((e) => e.firstElementChild.textContent === {json.dumps(title)});"
        " if (!found) return false; found.open = true; found.setAttribute('data-tested', '');"
        " return true; }"
    )
    return "details[data-tested]"


async def until_enabled(page: Page, form: str, *, is_on: bool = True) -> None:
    """Wait until the form's button is enabled, or disabled."""
    await page.until(
        f"document.querySelector('{form} form button').disabled === {json.dumps(not is_on)}"
    )
