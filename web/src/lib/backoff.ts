/** Delays between reconnection attempts: 1, 2, 4 … 30 s. The wait ends early when the browser comes online or the page becomes visible. */
const BACKOFF_MS = [1000, 2000, 4000, 8000, 16_000, 30_000];

export class Backoff {
  private failures = 0;
  private done: (() => void) | undefined;
  private readonly hasten = () => {
    if (document.visibilityState === "visible") this.done?.();
  };

  /** Resolve when it is time to try again. */
  wait(): Promise<void> {
    addEventListener("online", this.hasten);
    document.addEventListener("visibilitychange", this.hasten);
    return new Promise((resolve) => {
      this.done = () => {
        clearTimeout(timer);
        removeEventListener("online", this.hasten);
        document.removeEventListener("visibilitychange", this.hasten);
        this.done = undefined;
        resolve();
      };
      const timer = setTimeout(this.done, BACKOFF_MS[Math.min(this.failures++, BACKOFF_MS.length - 1)]);
    });
  }

  /** Start with the shortest delay again, after a success. */
  reset(): void {
    this.failures = 0;
  }

  /** End the current wait. */
  hurry(): void {
    this.done?.();
  }
}
