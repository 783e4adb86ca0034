import { useMutation, useQuery } from "@tanstack/react-query";
import { ExternalLink, PanelRight } from "lucide-react";
import { useState } from "react";
import { api, got } from "@/api/client";
import { Button } from "@/ui/button";
import { Sheet } from "@/ui/dialog";
import { Loaded } from "@/ui/states";
import { failed } from "@/ui/toast";

const EVERY_MS = 5000;

/** An address that shows a port once, for this browser. */
export async function preview(sandboxId: string, port: number, path = "/"): Promise<string> {
  const made = await got(
    api.POST("/api/v1/sandboxes/{sandbox_id}/previews", {
      params: { path: { sandbox_id: sandboxId } },
      body: { port, path },
    }),
  );
  return made.url;
}

/** What listens in the sandbox, each with a way to see it: in a tab of its own, or in a drawer. Always on another origin than this page. */
export function Ports({ sandboxId, awake }: { sandboxId: string; awake: boolean }) {
  const [drawer, setDrawer] = useState<{ port: number; url: string } | null>(null);
  const query = useQuery({
    queryKey: ["ports", sandboxId],
    queryFn: () =>
      got(api.GET("/api/v1/sandboxes/{sandbox_id}/ports", { params: { path: { sandbox_id: sandboxId } } })),
    refetchInterval: awake ? EVERY_MS : false,
  });
  const open = useMutation({
    mutationFn: async ({ port, beside }: { port: number; beside: boolean }) => {
      if (beside) return setDrawer({ port, url: await preview(sandboxId, port) });
      const tab = window.open("about:blank", "_blank"); // at once, or the browser takes it for an advertisement
      try {
        const url = await preview(sandboxId, port);
        if (!tab)
          throw new Error("The browser did not allow a new tab. Allow pop-ups for this site, or open it beside.");
        tab.opener = null;
        tab.location.replace(url);
      } catch (error) {
        tab?.close();
        throw error;
      }
    },
    onError: failed("Could not open the preview"),
  });
  return (
    <>
      <Loaded query={query}>
        {(ports) =>
          ports.items.length === 0 ? (
            <p className="text-[13px] text-soft">
              {ports.sleeping
                ? "The sandbox sleeps. Its ports are known when it is awake."
                : "Nothing listens on a port in it."}
            </p>
          ) : (
            <ul className="divide-y rounded-md border">
              {ports.items.map((one) => (
                <li key={`${one.address}:${one.port}`} className="flex flex-wrap items-center gap-2 px-2 py-1.5">
                  <span className="font-mono text-[13px] tabular-nums">{one.port}</span>
                  <span className="mr-auto truncate text-xs text-soft">{one.process ?? one.address}</span>
                  <Button
                    size="sm"
                    busy={open.isPending}
                    onClick={() => open.mutate({ port: one.port, beside: false })}
                  >
                    <ExternalLink className="size-3.5" aria-hidden /> Open
                  </Button>
                  <Button size="sm" busy={open.isPending} onClick={() => open.mutate({ port: one.port, beside: true })}>
                    <PanelRight className="size-3.5" aria-hidden /> Beside
                  </Button>
                </li>
              ))}
            </ul>
          )
        }
      </Loaded>
      <FrameSheet title={`Port ${drawer?.port ?? ""}`} url={drawer?.url ?? null} onClose={() => setDrawer(null)} />
    </>
  );
}

/** A preview in a drawer: a frame of another origin that can neither leave its frame nor look into this page. */
export function FrameSheet({ title, url, onClose }: { title: string; url: string | null; onClose: () => void }) {
  return (
    <Sheet wide open={url !== null} onOpenChange={(open) => !open && onClose()} title={title}>
      {url && (
        <iframe
          src={url}
          title={title}
          className="h-full min-h-[70vh] w-full rounded-md border bg-white"
          sandbox="allow-scripts allow-forms allow-same-origin allow-downloads allow-popups allow-modals"
          referrerPolicy="no-referrer"
        />
      )}
    </Sheet>
  );
}
