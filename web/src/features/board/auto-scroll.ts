/** Scroll an element while something is dragged near its edge. */
const EDGE_PX = 56;
const MAX_STEP_PX = 16;

type Axis = "x" | "y";

/** Return how many pixels to scroll in one frame, for a pointer position between `from` and `to`; negative towards the start. */
export function getScrollStep(position: number, from: number, to: number): number {
  const edge = Math.min(EDGE_PX, (to - from) / 4);
  if (position < from + edge) return -Math.ceil((Math.min(edge, from + edge - position) / edge) * MAX_STEP_PX);
  if (position > to - edge) return Math.ceil((Math.min(edge, position - (to - edge)) / edge) * MAX_STEP_PX);
  return 0;
}

/** Call `update` with each pointer position: it scrolls near an edge. Call `stop` at the end. `onScroll` is called after each step. */
export class AutoScroll {
  private frame = 0;
  private pointer = { x: 0, y: 0 };
  private readonly axis: Axis;
  private readonly element: HTMLElement;
  private readonly onScroll: () => void;

  constructor(element: HTMLElement, axis: Axis, onScroll: () => void = () => undefined) {
    this.element = element;
    this.axis = axis;
    this.onScroll = onScroll;
  }

  update(x: number, y: number): void {
    this.pointer = { x, y };
    if (!this.frame) this.frame = requestAnimationFrame(this.step);
  }

  stop(): void {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
  }

  private readonly step = (): void => {
    this.frame = requestAnimationFrame(this.step);
    const box = this.element.getBoundingClientRect();
    const by =
      this.axis === "y"
        ? getScrollStep(this.pointer.y, box.top, box.bottom)
        : getScrollStep(this.pointer.x, box.left, box.right);
    if (!by) return;
    if (this.axis === "y") this.element.scrollTop += by;
    else this.element.scrollLeft += by;
    this.onScroll();
  };
}
