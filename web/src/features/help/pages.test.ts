import { expect, test } from "vitest";
import { withOwnLinks } from "./pages";

test("links between documents point to help pages; other local links and images are removed", () => {
  expect(withOwnLinks("See [agents](docs/agents.md#mcp-servers) and [it](operating.md).")).toBe(
    "See [agents](/help?tab=agents) and [it](/help?tab=operating).",
  );
  expect(withOwnLinks("[one](reference/settings.md#engine), [two](../api.md), [three](reference/cli.md)")).toBe(
    "[one](/help?tab=reference/settings), [two](/help?tab=api), three",
  );
  expect(withOwnLinks("[why](decisions/0024-the-web.md), [web](https://example.org/a.md)")).toBe(
    "why, [web](https://example.org/a.md)",
  );
  expect(withOwnLinks("![The board](docs/screenshots/board-light.png)\n[x](../README.md)")).toBe(
    "\n[x](/help?tab=README)",
  );
  expect(withOwnLinks("Before\n\n| | |\n|---|---|\n| ![a](a.png) | ![b](b.png) |\n\n| x |\n|---|\n")).toBe(
    "Before\n\n\n| x |\n|---|\n",
  );
  expect(withOwnLinks("Open that address:\n\n![The board](board.png)\n\nThree steps")).toBe(
    "Open that address.\n\nThree steps",
  );
});
