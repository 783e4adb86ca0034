import { useMutation, useQuery } from "@tanstack/react-query";
import { ExternalLink, PanelRight } from "lucide-react";
import { api, got } from "@/api/client";
import { openInTab } from "@/features/previews/open";
import { showPreview } from "@/features/previews/shown";
import { useWide } from "@/features/workspace/use-wide";
import { Button } from "@/ui/button";
import { Loaded } from "@/ui/states";
import { failed } from "@/ui/toast";

const EVERY_MS = 5000;

/** Open ports of the sandbox. Each can be previewed in a new tab or beside the page, always on another origin than this page. */
export function Ports({ sandboxId, awake }: { sandboxId: string; awake: boolean }) {
  const query = useQuery({
    queryKey: ["ports", sandboxId],
    queryFn: () =>
      got(api.GET("/api/v1/sandboxes/{sandbox_id}/ports", { params: { path: { sandbox_id: sandboxId } } })),
    refetchInterval: awake ? EVERY_MS : false,
  });
  const wide = useWide();
  const open = useMutation({
    mutationFn: (port: number) => openInTab(sandboxId, port),
    onError: failed("Could not open the preview"),
  });
  return (
    <Loaded query={query}>
      {(ports) =>
        ports.items.length === 0 ? (
          <p className="text-[13px] text-soft">
            {ports.sleeping ? "Sandbox paused. Resume it to see its ports." : "No open ports."}
          </p>
        ) : (
          <ul className="divide-y rounded-md border">
            {ports.items.map((one) => (
              <li key={`${one.address}:${one.port}`} className="flex flex-wrap items-center gap-2 px-2 py-1.5">
                <span className="font-mono text-[13px] tabular-nums">{one.port}</span>
                <span className="mr-auto truncate text-xs text-soft">{one.process ?? one.address}</span>
                <Button size="sm" busy={open.isPending} onClick={() => open.mutate(one.port)}>
                  <ExternalLink className="size-3.5" aria-hidden /> Open
                </Button>
                <Button
                  size="sm"
                  onClick={() => showPreview({ sandboxId, port: one.port, path: "/", title: `Port ${one.port}` })}
                >
                  <PanelRight className="size-3.5" aria-hidden /> {wide ? "Open to the side" : "Preview"}
                </Button>
              </li>
            ))}
          </ul>
        )
      }
    </Loaded>
  );
}
