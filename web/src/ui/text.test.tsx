/** Text that needs care: hidden characters, terminal styles, times, error messages. */
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

const stubs = vi.hoisted(() => {
  vi.stubGlobal("location", { origin: "http://localhost" }); // read by the API client
  return { errors: [] as unknown[][] };
});
vi.mock("react", async (original) => ({
  ...(await original<object>()),
  ...(await import("./static-hooks")).hooks,
}));
vi.mock("sonner", () => ({ toast: { error: (...shown: unknown[]) => stubs.errors.push(shown) } }));

import { ApiError } from "@/api/client";
import { ansiClasses } from "./ansi";
import { renderAgain, renderFirst } from "./static-hooks";
import { Ago } from "./time";
import { showError } from "./toast";
import { VisibleText } from "./visible-text";

describe("VisibleText", () => {
  it("is the text itself if nothing in it is hidden", () => {
    expect(renderFirst(<VisibleText text="naïve <b> 漢" />)).toBe("naïve &lt;b&gt; 漢");
  });

  it("marks characters that are invisible or change the direction of text", () => {
    const html = renderFirst(<VisibleText text={"ls \u202e# safe"} />);
    expect(html).toMatch(
      /<span>ls <\/span><span title="Invisible or direction-changing character"[^>]*>⟨U\+202E⟩<\/span>/,
    );
    expect(html).toContain("<span># safe</span>");
  });
});

describe("ansiClasses", () => {
  it("combines colours and styles", () => {
    expect(ansiClasses({ fg: "red", bg: "blue", bold: true } as never)).toBe("log-fg-red log-bg-blue font-semibold");
  });

  it("has one class for inverse text in place of its colours", () => {
    expect(ansiClasses({ fg: "red", inverse: true, underline: true } as never)).toBe("log-inverse underline");
  });

  it("is undefined for plain text", () => {
    expect(ansiClasses({} as never)).toBeUndefined();
  });
});

describe("Ago", () => {
  beforeEach(() => {
    vi.useFakeTimers({ now: new Date("2026-01-01T00:10:00Z") });
  });
  afterEach(() => {
    vi.useRealTimers();
  });

  it("gets older while it is shown, and can be read exactly", () => {
    const at = "2026-01-01T00:08:00Z";
    const html = renderFirst(<Ago at={at} />);
    expect(html).toContain(`dateTime="${at}"`);
    expect(html).toMatch(/title="[^"]+"[^>]*>2 min ago</);
    vi.advanceTimersByTime(60_000);
    expect(renderAgain(<Ago at={at} />)).toContain("3 min ago");
  });

  it("follows a new time", () => {
    renderFirst(<Ago at="2026-01-01T00:00:00Z" />);
    renderAgain(<Ago at="2026-01-01T00:05:00Z" />);
    expect(renderAgain(<Ago at="2026-01-01T00:05:00Z" />)).toContain("5 min ago");
  });
});

describe("showError", () => {
  it("says what failed and why", () => {
    showError("Could not stop the agent")(new ApiError(409, { detail: "No turn is running." }));
    expect(stubs.errors).toEqual([
      ["Could not stop the agent", expect.objectContaining({ description: "No turn is running." })],
    ]);
  });
});
