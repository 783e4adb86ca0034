import type { ComponentProps, ReactNode } from "react";
import { afterEach, describe, expect, it, vi } from "vitest";

const stubs = vi.hoisted(() => {
  vi.stubGlobal("location", { origin: "http://localhost" }); // read by the API client
  return { click: () => undefined as unknown, errors: [] as string[] };
});
vi.mock("react", async (original) => ({
  ...(await original<object>()),
  ...(await import("./static-hooks")).hooks,
}));
vi.mock("./button", async (original) => {
  const real = await original<typeof import("./button")>();
  const IconButton: typeof real.IconButton = (props) => {
    stubs.click = props.onClick as typeof stubs.click;
    return <real.IconButton {...props} />;
  };
  return { ...real, IconButton };
});
vi.mock("sonner", () => ({ toast: { error: (message: string) => stubs.errors.push(message) } }));

import { Tooltip } from "radix-ui";
import { highlight } from "@/lib/highlight";
import { Code, CopyButton } from "./code";
import { renderAgain, renderFirst } from "./static-hooks";

const inside = (node: ReactNode) => <Tooltip.Provider>{node}</Tooltip.Provider>;
const textOf = (html: string) => /<code>(.*?)<\/code>/s.exec(html)?.[1]?.replace(/<[^>]*>/g, "");

afterEach(() => {
  vi.useRealTimers();
  stubs.errors.length = 0;
});

describe("Code", () => {
  /** Return what is shown at first, and after the highlighter has loaded. */
  async function show(props: ComponentProps<typeof Code>) {
    const first = renderFirst(inside(<Code {...props} />));
    await highlight("", "python"); // done after the call of the component, which came first
    await Promise.resolve();
    return { first, later: renderAgain(inside(<Code {...props} />)) };
  }

  it("shows the text as written, then highlighted", async () => {
    const { first, later } = await show({ text: "if a < b:\n    return 1", language: "python" });
    expect(textOf(first)).toBe("if a &lt; b:\n    return 1");
    expect(first).not.toContain("hl-");
    expect(textOf(later)?.trimEnd()).toBe("if a &lt; b:\n    return 1");
    expect(later).toContain('<span class="hl-keyword">return</span>');
  });

  it("shows the text as written if the language is unknown, missing, or the text is too long", async () => {
    for (const language of [undefined, "no-such-language"]) {
      const { later } = await show({ text: "return 1\n<b>", language });
      expect(textOf(later)?.trimEnd()).toBe("return 1\n&lt;b&gt;");
      expect(later).not.toContain("hl-");
    }
    const { later } = await show({ text: "return 1\n".repeat(30_000), language: "python" });
    expect(later).not.toContain("hl-");
  });

  it("shows a new text without the highlighting of the old one", async () => {
    await show({ text: "return 1", language: "python" });
    renderAgain(inside(<Code text="return 2" language="python" />));
    expect(textOf(renderAgain(inside(<Code text="return 2" language="python" />)))).toBe("return 2");
  });

  it("marks characters that hide what is run, before and after it is highlighted", async () => {
    const { first, later } = await show({ text: "ls \u202e# safe", language: "bash" });
    for (const html of [first, later]) {
      expect(html).toContain("⟨U+202E⟩");
      expect(html).not.toContain("\u202e");
    }
  });

  it("can be scrolled with the keyboard, and an empty text is an empty block", () => {
    const html = renderFirst(inside(<Code text="" />));
    expect(html).toMatch(/<pre[^>]* tabindex="0"[^>]*><code><\/code><\/pre>/);
  });
});

describe("CopyButton", () => {
  const button = (text: string | (() => string)) => inside(<CopyButton text={text} label="Copy path" />);

  it("copies the text and says so for a moment", async () => {
    vi.useFakeTimers();
    const writeText = vi.fn(async () => undefined);
    vi.stubGlobal("navigator", { clipboard: { writeText } });
    expect(renderFirst(button("a\u202eb"))).toContain('aria-label="Copy path"');
    await stubs.click();
    expect(writeText.mock.calls).toEqual([["a\u202eb"]]);
    expect(renderAgain(button("a\u202eb"))).toContain('aria-label="Copied"');
    vi.runAllTimers();
    expect(renderAgain(button("a\u202eb"))).toContain('aria-label="Copy path"');
  });

  it("makes the text when it is pressed", async () => {
    const writeText = vi.fn(async () => undefined);
    vi.stubGlobal("navigator", { clipboard: { writeText } });
    const make = vi.fn(() => "made");
    renderFirst(button(make));
    expect(make).not.toHaveBeenCalled();
    await stubs.click();
    expect(writeText.mock.calls).toEqual([["made"]]);
  });

  it.each([
    ["has no clipboard, as without HTTPS", {}],
    ["refuses", { clipboard: { writeText: () => Promise.reject(new Error("NotAllowedError")) } }],
  ])("says that nothing was copied if the browser %s", async (_, navigator) => {
    vi.stubGlobal("navigator", navigator);
    renderFirst(button("text"));
    await stubs.click();
    expect(renderAgain(button("text"))).toContain('aria-label="Copy path"');
    expect(stubs.errors).toEqual(["The browser does not allow this page to copy."]);
  });
});
