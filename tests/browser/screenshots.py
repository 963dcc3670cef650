"""A picture of every page, at two widths and in both themes: `make screenshots`, into the folder `screenshots`."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from tests.browser.chromium import PAGES, chromium, opened, program
from tests.browser.small_site import SmallSite

SIZES = ((1440, 900), (390, 844))
FIGURES_S = 22.0  # until there are figures over time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("screenshots"))
    parser.add_argument("--pages", default="", help="only these, separated by commas")
    asked = parser.parse_args()
    if not program():
        raise SystemExit("Chromium is not installed; see: make services")
    asked.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        site = SmallSite(Path(folder)).start()
        try:
            site.fill()
            time.sleep(FIGURES_S)
            taken = take(site, asked.folder, tuple(filter(None, asked.pages.split(","))) or (*PAGES, "jobs/8"))
        finally:
            site.stop()
    print(f"{taken} pictures in {asked.folder}")


def take(site: SmallSite, folder: Path, pages: tuple[str, ...]) -> int:
    taken = 0
    with chromium() as browser:
        for width, height in SIZES:
            for theme in ("light", "dark"):
                tab = opened(browser, site.live.url, site.tokens["admin"], width, height, theme)
                for name in pages:
                    tab.go(name)
                    tab.page.wait_for_timeout(600)
                    file = name.replace("/", "-").replace("?", "-").replace("=", "-")
                    tab.page.screenshot(full_page=True, path=folder / f"{file}-{width}-{theme}.png")
                    taken += 1
                assert not tab.errors, tab.errors
                tab.page.context.close()
    return taken


if __name__ == "__main__":
    main()
