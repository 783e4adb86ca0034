/** How long to wait before a connection is tried again: 1, 2, 4 … 30 s, and not at all when the browser or its person is back. */
const BACKOFF_MS = [1000, 2000, 4000, 8000, 16_000, 30_000];

export class Backoff {
  private failures = 0;
  private done: (() => void) | undefined;
  private readonly hasten = () => {
    if (document.visibilityState === "visible") this.done?.();
  };

  /** Resolves when it is time to try again. */
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

  /** It worked: the next wait is short again. */
  reset(): void {
    this.failures = 0;
  }

  /** Wait no longer. */
  hurry(): void {
    this.done?.();
  }
}
