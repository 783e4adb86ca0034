"""Shrinks screenshots to a palette of at most 256 colours, which is enough for flat surfaces and text."""

from __future__ import annotations

import base64
import struct
import zlib
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page

_INDEX_COLOURS = """async (png) => {
  const bytes = Uint8Array.from(atob(png), (one) => one.charCodeAt(0));
  const image = await createImageBitmap(new Blob([bytes]));
  const canvas = new OffscreenCanvas(image.width, image.height);
  const drawing = canvas.getContext("2d");
  drawing.drawImage(image, 0, 0);
  const pixels = new Uint32Array(drawing.getImageData(0, 0, image.width, image.height).data.buffer);
  const counts = new Map();
  for (const one of pixels) counts.set(one, (counts.get(one) ?? 0) + 1);
  const colours = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a));
  const palette = colours.slice(0, 256);
  const parts = (one) => [one & 255, (one >> 8) & 255, (one >> 16) & 255];
  const known = palette.map(parts);
  const places = new Map(palette.map((one, place) => [one, place]));
  for (const one of colours.slice(256)) {
    const [r, g, b] = parts(one);
    let best = 0, least = Infinity;
    known.forEach(([x, y, z], place) => {
      const far = (r - x) ** 2 + (g - y) ** 2 + (b - z) ** 2;
      if (far < least) [best, least] = [place, far];
    });
    places.set(one, best);
  }
  const indices = Uint8Array.from(pixels, (one) => places.get(one));
  let text = "";
  for (let at = 0; at < indices.length; at += 32768) text += String.fromCharCode(...indices.subarray(at, at + 32768));
  return { width: image.width, height: image.height, palette: known.flat(), indices: btoa(text) };
}"""


def shrink_all(browser: Browser, folder: Path) -> None:
    """Shrink all PNG files of a folder in place."""
    page = browser.new_page()
    for path in sorted(folder.glob("*.png")):
        path.write_bytes(_shrink(page, path.read_bytes()))
    page.close()


def _shrink(page: Page, png: bytes) -> bytes:
    """Return the image with a palette, or the original if that is smaller."""
    result: dict[str, Any] = page.evaluate(_INDEX_COLOURS, base64.b64encode(png).decode())
    width, height, indices = result["width"], result["height"], base64.b64decode(result["indices"])
    rows = b"".join(b"\0" + indices[at : at + width] for at in range(0, width * height, width))
    packed = b"\x89PNG\r\n\x1a\n" + b"".join(
        (
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            _chunk(b"PLTE", bytes(result["palette"])),
            _chunk(b"IDAT", zlib.compress(rows, 9)),
            _chunk(b"IEND", b""),
        )
    )
    return min(packed, png, key=len)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
