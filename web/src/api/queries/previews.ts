/** Previews of a sandbox's ports, each on its own origin. */
import { api, unwrap } from "../client";
import { defineMutation } from "../mutation";

interface PreviewAddress {
  sandboxId: string;
  port: number;
  /** Encoded, including the query. */
  path: string;
  /** Including #, or empty. Never sent to the server. */
  hash: string;
}

/** Create a preview and return its one-time URL for this browser. */
async function createPreview({ sandboxId, port, path, hash }: PreviewAddress): Promise<string> {
  const preview = await unwrap(
    api.POST("/api/v1/sandboxes/{sandbox_id}/previews", {
      params: { path: { sandbox_id: sandboxId } },
      body: { port, path },
    }),
  );
  return preview.url + hash;
}

export const useCreatePreview = defineMutation({ request: createPreview });

/** Return the path that a preview shows, as last seen by the platform. */
export async function readShownPath(sandboxId: string, port: number): Promise<string | null> {
  const shown = await unwrap(
    api.GET("/api/v1/sandboxes/{sandbox_id}/previews/{port}", { params: { path: { sandbox_id: sandboxId, port } } }),
  );
  return shown.path;
}

export const useOpenPreviewTab = defineMutation({
  request: async (address: PreviewAddress) => {
    const tab = window.open("about:blank", "_blank"); // opened synchronously, otherwise the pop-up blocker stops it
    try {
      const url = await createPreview(address);
      if (!tab)
        throw new Error(
          "The browser blocked the new tab. Allow pop-ups for this site, or open the preview in this page.",
        );
      tab.opener = null;
      tab.location.replace(url);
    } catch (error) {
      tab?.close();
      throw error;
    }
  },
});

/** Start the editor in a sandbox. Returns the port and path of its preview. */
export const useStartEditor = defineMutation({
  request: (sandboxId: string) =>
    unwrap(api.POST("/api/v1/sandboxes/{sandbox_id}/editor", { params: { path: { sandbox_id: sandboxId } } })),
});
