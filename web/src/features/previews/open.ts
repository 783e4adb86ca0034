import { api, got } from "@/api/client";

/** An address that shows a port once, for this browser. */
export async function createPreview(sandboxId: string, port: number, path = "/"): Promise<string> {
  const made = await got(
    api.POST("/api/v1/sandboxes/{sandbox_id}/previews", {
      params: { path: { sandbox_id: sandboxId } },
      body: { port, path },
    }),
  );
  return made.url;
}

/** The path that a frame shows: what was opened in it, as far as the platform has seen it. */
export async function readShownPath(sandboxId: string, port: number): Promise<string | null> {
  const shown = await got(
    api.GET("/api/v1/sandboxes/{sandbox_id}/previews/{port}", { params: { path: { sandbox_id: sandboxId, port } } }),
  );
  return shown.path;
}

export async function openInTab(sandboxId: string, port: number, path = "/", hash = ""): Promise<void> {
  const tab = window.open("about:blank", "_blank"); // at once, or the browser takes it for an advertisement
  try {
    const url = await createPreview(sandboxId, port, path);
    if (!tab) throw new Error("The browser did not allow a new tab. Allow pop-ups for this site, or open it beside.");
    tab.opener = null;
    tab.location.replace(url + hash);
  } catch (error) {
    tab?.close();
    throw error;
  }
}
