/** What the panel says if there is nothing to show. */
import { renderToStaticMarkup } from "react-dom/server";
import { expect, it, vi } from "vitest";

vi.hoisted(() => vi.stubGlobal("location", { origin: "http://localhost" })); // read by the API client

import { NoChanges } from "./panel";

it.each([
  [{ gone: false, merged: false }, "No changes yet"],
  [{ gone: true, merged: false }, "No differences from main."],
  [{ gone: true, merged: true }, "main contains these changes."],
])("%o: %s", (state, text) => {
  expect(renderToStaticMarkup(<NoChanges against="base" base="main" {...state} />)).toContain(text);
});
