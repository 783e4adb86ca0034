const RELOADED = "sandyard.reloaded";
const RELOAD_INTERVAL_MS = 10_000;
const RETRY_MS = 1_000;

/** Reload the page if a chunk of the application cannot be loaded: the platform was updated while this page was open, or
 * was not running for a moment. Drafts are kept. Reloads at most once every 10 seconds, and not before the platform
 * responds: otherwise the browser would replace the page with its own error page and stay on it. */
export function reloadAfterMissingChunks(reload: () => void = () => location.reload()): void {
  let waiting = false;
  // Do not call preventDefault: then the import would resolve to undefined and crash the page. As it is, the router handles the failure.
  addEventListener("vite:preloadError", () => {
    if (waiting || Date.now() - Number(sessionStorage.getItem(RELOADED)) < RELOAD_INTERVAL_MS) return;
    waiting = true;
    const tryToReload = async () => {
      const responds = await fetch("/health").then(
        () => true,
        () => false,
      );
      if (!responds) return void setTimeout(() => void tryToReload(), RETRY_MS);
      waiting = false;
      sessionStorage.setItem(RELOADED, String(Date.now()));
      reload();
    };
    void tryToReload();
  });
}
