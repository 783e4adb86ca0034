import { createRef, type RefObject } from "react";
import { expect, it, vi } from "vitest";

const observed = vi.hoisted(() => ({ notify: () => undefined as unknown, disconnected: 0 }));
vi.mock("react", async (original) => ({
  ...(await original<object>()),
  ...(await import("./static-hooks")).hooks,
}));
vi.stubGlobal(
  "ResizeObserver",
  class {
    constructor(notify: () => void) {
      observed.notify = notify;
    }
    observe() {}
    disconnect() {
      observed.disconnected += 1;
    }
  },
);

import { renderAgain, renderFirst } from "./static-hooks";
import { useOverflow } from "./use-overflow";

function Row({ row }: { row: RefObject<HTMLElement | null> }) {
  return useOverflow(row).hasMore ? "more" : "all";
}

it("a row has more content if its end is outside, until it is scrolled or widened", () => {
  const row = createRef<HTMLElement>();
  const size = { scrollLeft: 0, clientWidth: 100, scrollWidth: 150 };
  row.current = size as HTMLElement;
  renderFirst(<Row row={row} />);
  observed.notify();
  expect(renderAgain(<Row row={row} />)).toBe("more");
  size.scrollLeft = 47; // the last pixels do not count
  observed.notify();
  expect(renderAgain(<Row row={row} />)).toBe("all");
  Object.assign(size, { scrollLeft: 0, clientWidth: 150 });
  observed.notify();
  expect(renderAgain(<Row row={row} />)).toBe("all");
});

it("a row that is not shown has no more content", () => {
  expect(renderFirst(<Row row={createRef()} />)).toBe("all");
});
