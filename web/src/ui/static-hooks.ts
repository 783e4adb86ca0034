/**
 * useState, useRef and useEffect for tests without a DOM: React's server renderer keeps no state and runs no effects. Cells are matched by
 * the order of calls, so every render of a test must contain the same components. Use it with
 * `vi.mock("react", async (original) => ({ ...(await original<object>()), ...(await import("./static-hooks")).hooks }))`.
 */
import type { ReactNode } from "react";
import { renderToStaticMarkup } from "react-dom/server";

interface Cell {
  value?: unknown;
  dependencies?: readonly unknown[];
  stop?: (() => void) | undefined;
}

let cells: Cell[] = [];
let calls = 0;
let pending: (() => void)[] = [];

function nextCell(make: () => Cell): Cell {
  const cell = cells[calls] ?? make();
  cells[calls] = cell;
  calls += 1;
  return cell;
}

export const hooks = {
  useState<T>(initial: T | (() => T)): [T, (next: T | ((known: T) => T)) => void] {
    const cell = nextCell(() => ({ value: initial instanceof Function ? initial() : initial }));
    const set = (next: T | ((known: T) => T)) => {
      cell.value = next instanceof Function ? next(cell.value as T) : next;
    };
    return [cell.value as T, set];
  },
  useRef<T>(initial: T): { current: T } {
    return nextCell(() => ({ value: { current: initial } })).value as { current: T };
  },
  useEffect(run: () => undefined | (() => void), dependencies: readonly unknown[]): void {
    const cell = nextCell(() => ({}));
    const known = cell.dependencies;
    if (known && dependencies.every((value, index) => Object.is(value, known[index]))) return;
    cell.dependencies = dependencies;
    pending.push(() => {
      cell.stop?.();
      cell.stop = run();
    });
  },
};

/** Render with the state of the render before, then run the effects. */
export function renderAgain(node: ReactNode): string {
  calls = 0;
  pending = [];
  const html = renderToStaticMarkup(node);
  for (const run of pending) run();
  return html;
}

/** Render without earlier state. */
export function renderFirst(node: ReactNode): string {
  cells = [];
  return renderAgain(node);
}
