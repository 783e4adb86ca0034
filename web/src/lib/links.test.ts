import { expect, test, vi } from "vitest";
import { sanitizeHref } from "./links";

vi.stubGlobal("location", { origin: "http://localhost" });

test.each([
  ["https://example.org", "https://example.org/"],
  ["http://example.org/a?b=1#c", "http://example.org/a?b=1#c"],
  ["mailto:a@example.org", "mailto:a@example.org"],
  ["/help?tab=agents", "http://localhost/help?tab=agents"],
])("%s can be opened", (href, opened) => {
  expect(sanitizeHref(href)).toBe(opened);
});

test.each([
  "javascript:own()",
  " JavaScript:own()",
  "java\nscript:own()",
  "\u0001javascript:own()",
  "data:text/html,own()",
  "vbscript:own()",
  "file:///etc/passwd",
  "blob:http://localhost/1",
  "vscode://own",
  "http://[",
  "",
  undefined,
])("%j cannot", (href) => {
  expect(sanitizeHref(href)).toBeUndefined();
});
