"""Take the pictures of the live page and of `epp top` that the documentation shows, of the demo's fleet.

With ``--every`` also the whole page at each width, light and dark, and `epp top` at each number of columns.

python -m tests.console.screenshots [--images docs/images] [--every FOLDER]
"""

from __future__ import annotations

import asyncio
import io
import sys
from base64 import b64decode
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console

from epp.config.pool import EndpointSpec
from epp.feeds.files import replace_file
from epp.ops.top import drawn, pictures
from epp_lab.demo.command import fleet
from epp_lab.demo.example import example_parser, run_example
from epp_lab.workloads.art_chat import DEMO, generate
from tests.kit.browser import Chromium
from tests.kit.engines import Answered, Engine

#: The load lasts longer than the pictures take; pins come one by one, so that weights have a history.
_LOAD_S, _PIN_S = 90.0, 4.0
_PINS = (0.4, 0.3, 0.6)
_SIZE, _WIDTHS = (1280, 720), (400, 1280, 2200)
_OTHER = "lmetric"
_COLUMNS, _LINES, _EVERY_COLUMNS = 130, 34, (80, 120, 200)
#: Until the first bucket of the history is closed.
_SHOWN_S = 60.0
_STYLE = (
    "body { background: #14171c; color: #e4e7eb; margin: 16px; font-size: 15px } pre { line-height: 1.3 }"
)


def main() -> int:
    """Run the demo's fleet, and take the pictures."""
    parser = example_parser("screenshots", __doc__)
    parser.add_argument("--images", type=Path, default=Path("docs/images"), help="folder (%(default)s)")
    parser.add_argument("--every", type=Path, help="folder, which must be there, for all widths as PNG")
    return run_example(
        parser, lambda arguments: uvloop.run(show(arguments.out, arguments.images, arguments.every))
    )


async def show(out: Path, images: Path, every: Path | None) -> int:
    """Take pictures under load, of which one replica fails its part."""
    requests = generate(replace(DEMO, duration_s=_LOAD_S), 1)
    broken = Engine(answer=lambda _: Answered([b'{"error": {"message": "out of memory"}}'], status=500))
    async with fleet(out, "gorgo-ms") as stack, Chromium(out, _SIZE) as page, broken:
        sending = asyncio.create_task(stack.send(requests))
        await page.open(f"{stack.picker_url}/ui")
        for weight in _PINS:
            await asyncio.sleep(_PIN_S)
            pins = f"weights: {{stall_weight: {weight}}}\n"
            replace_file(stack.folder / "overrides.yaml", pins.encode())
        stack.endpoints["broken"] = EndpointSpec(address=broken.address, region="seoul")
        stack.write_pool(stack.endpoints)
        await page.until("document.querySelectorAll('#failures tr, #out li').length > 1", _SHOWN_S)
        await page.until("document.querySelector('#totals tr') !== null", _SHOWN_S)
        await page.look(
            f"document.getElementById('other').value = '{_OTHER}',"
            "document.getElementById('ask').requestSubmit()"
        )
        await page.until("document.querySelector('#opinion table') !== null")
        replace_file(images / "ui.webp", await page.screenshot())
        if every is not None:
            await show_widths(page, every)
        await page.dark(on=True)
        await page.press("j")
        await page.press("Enter")
        await page.until("document.getElementById('explain').open")
        replace_file(images / "ui-explain.webp", await page.screenshot())
        seen = await asyncio.to_thread(next, pictures(stack.picker_url))
        for columns in (_COLUMNS, *(_EVERY_COLUMNS if every is not None else ())):
            text = out / "top.html"
            replace_file(text, top(seen, columns).encode())
            await page.open(text.absolute().as_uri())
            await page.until("document.querySelector('pre') !== null")
            if columns == _COLUMNS:
                replace_file(images / "top.webp", await page.screenshot())
            elif every is not None:
                replace_file(every / f"top-{columns}.png", await whole(page, columns * 10))
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    return 0


async def show_widths(page: Chromium, folder: Path) -> None:
    """Take the whole page at each width, light and dark; by region, then by replica."""
    for group in ("replica", "region"):
        await page.look(f"document.querySelector('#groups [value={group}]').click()")
        for width in _WIDTHS:
            for dark in (False, True):
                await page.dark(on=dark)
                replace_file(
                    folder / f"ui-{group}-{width}-{'dark' if dark else 'light'}.png", await whole(page, width)
                )
    await page.dark(on=False)
    await whole(page, *_SIZE)


async def whole(page: Chromium, width: int, height: int = 0) -> bytes:
    """Take a picture of all of the page at a width, as PNG."""

    async def resize(height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await page.call("Emulation.setDeviceMetricsOverride", **size)

    await resize(800)
    await resize(height or await page.look("document.documentElement.scrollHeight"))
    wide = await page.look("document.documentElement.scrollWidth")
    if wide > width:
        print(f"at {width} px the page is {wide} px wide")
    return b64decode((await page.call("Page.captureScreenshot", format="png"))["data"])


def top(seen: dict[str, Any], columns: int) -> str:
    """Draw the picture of `epp top` as a page."""
    console = Console(
        record=True,
        width=columns,
        height=_LINES,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
    )
    console.print(drawn(seen, Counter(), columns, _LINES))
    return console.export_html(inline_styles=True).replace("</head>", f"<style>{_STYLE}</style></head>")


if __name__ == "__main__":
    sys.exit(main())
