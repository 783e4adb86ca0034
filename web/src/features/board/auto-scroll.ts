/** Scroll an element while something is dragged near its edge. */
const EDGE = 56;
const FASTEST = 16;

type Axis = "x" | "y";

/** Return how many pixels to scroll in one frame; negative towards the start. */
export function pace(at: number, from: number, to: number): number {
  const edge = Math.min(EDGE, (to - from) / 4);
  if (at < from + edge) return -Math.ceil((Math.min(edge, from + edge - at) / edge) * FASTEST);
  if (at > to - edge) return Math.ceil((Math.min(edge, at - (to - edge)) / edge) * FASTEST);
  return 0;
}

/** Call `point` with the pointer position to start scrolling and `stop` to end it. `scrolled` is called after each step. */
export class AutoScroll {
  private frame = 0;
  private at = { x: 0, y: 0 };
  private readonly axis: Axis;
  private readonly element: HTMLElement;
  private readonly scrolled: () => void;

  constructor(element: HTMLElement, axis: Axis, scrolled: () => void = () => undefined) {
    this.element = element;
    this.axis = axis;
    this.scrolled = scrolled;
  }

  point(x: number, y: number): void {
    this.at = { x, y };
    if (!this.frame) this.frame = requestAnimationFrame(this.step);
  }

  stop(): void {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
  }

  private readonly step = (): void => {
    this.frame = requestAnimationFrame(this.step);
    const box = this.element.getBoundingClientRect();
    const by = this.axis === "y" ? pace(this.at.y, box.top, box.bottom) : pace(this.at.x, box.left, box.right);
    if (!by) return;
    if (this.axis === "y") this.element.scrollTop += by;
    else this.element.scrollLeft += by;
    this.scrolled();
  };
}
