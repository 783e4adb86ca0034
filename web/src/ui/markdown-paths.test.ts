import { createElement } from "react";
import { renderToStaticMarkup } from "react-dom/server";
import ReactMarkdown from "react-markdown";
import { expect, test } from "vitest";
import { keepPaths } from "./markdown-paths";

const html = (text: string) =>
  renderToStaticMarkup(createElement(ReactMarkdown, { remarkPlugins: [keepPaths], children: text }));

test.each([
  "calc/__init__.py",
  "see calc/__init__.py and calc/__main__.py.",
  "__init__.py is empty",
  "remove __pycache__",
  "a/_private_/b",
  "a/_x and b/y_.",
  "src/*.py and tests/*.py",
])("%s is shown as written", (text) => {
  expect(html(text)).toBe(`<p>${text}</p>`);
});

test("emphasis stays emphasis", () => {
  expect(html("**bold** and _soft_, *both*.")).toBe("<p><strong>bold</strong> and <em>soft</em>, <em>both</em>.</p>");
  expect(html("__Very important__.")).toBe("<p><strong>Very important</strong>.</p>");
  expect(html("**see `a/__b__.py`**")).toBe("<p><strong>see <code>a/__b__.py</code></strong></p>");
});
