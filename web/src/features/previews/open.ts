import { api, got } from "@/api/client";

/** Create a preview and return its one-time URL for this browser. */
export async function createPreview(sandboxId: string, port: number, path = "/"): Promise<string> {
  const made = await got(
    api.POST("/api/v1/sandboxes/{sandbox_id}/previews", {
      params: { path: { sandbox_id: sandboxId } },
      body: { port, path },
    }),
  );
  return made.url;
}

/** Return the path that a preview shows, as last seen by the platform. */
export async function readShownPath(sandboxId: string, port: number): Promise<string | null> {
  const shown = await got(
    api.GET("/api/v1/sandboxes/{sandbox_id}/previews/{port}", { params: { path: { sandbox_id: sandboxId, port } } }),
  );
  return shown.path;
}

export async function openInTab(sandboxId: string, port: number, path = "/", hash = ""): Promise<void> {
  const tab = window.open("about:blank", "_blank"); // opened synchronously, otherwise the pop-up blocker stops it
  try {
    const url = await createPreview(sandboxId, port, path);
    if (!tab)
      throw new Error(
        "The browser blocked the new tab. Allow pop-ups for this site, or open the preview in this page.",
      );
    tab.opener = null;
    tab.location.replace(url + hash);
  } catch (error) {
    tab?.close();
    throw error;
  }
}
