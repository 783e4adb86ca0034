import { ExternalLink, PanelRight } from "lucide-react";
import { useOpenPreviewTab } from "@/api/queries/previews";
import { usePorts } from "@/api/queries/sandboxes";
import { showPreview } from "@/features/previews/open-preview";
import { Button } from "@/ui/button";
import { Loaded } from "@/ui/states";
import { showError } from "@/ui/toast";
import { useWide } from "@/ui/use-wide";

const POLL_MS = 5000;

/** Open ports of the sandbox. Each can be previewed in a new tab or beside the page, always on another origin than this page. */
export function Ports({ sandboxId, running }: { sandboxId: string; running: boolean }) {
  const query = usePorts(sandboxId, { refetchInterval: running ? POLL_MS : false });
  const wide = useWide();
  const open = useOpenPreviewTab({ onError: showError("Could not open the preview") });
  return (
    <Loaded query={query}>
      {(ports) =>
        ports.items.length === 0 ? (
          <p className="text-[13px] text-soft">
            {ports.sleeping ? "Sandbox paused. Resume it to see its ports." : "No open ports."}
          </p>
        ) : (
          <ul className="divide-y rounded-md border">
            {ports.items.map((port) => (
              <li key={`${port.address}:${port.port}`} className="flex flex-wrap items-center gap-2 px-2 py-1.5">
                <span className="font-mono text-[13px] tabular-nums">{port.port}</span>
                <span className="mr-auto truncate text-xs text-soft">{port.process ?? port.address}</span>
                <Button
                  size="sm"
                  busy={open.isPending}
                  onClick={() => open.mutate({ sandboxId, port: port.port, path: "/", hash: "" })}
                >
                  <ExternalLink className="size-3.5" aria-hidden /> Open
                </Button>
                <Button
                  size="sm"
                  onClick={() => showPreview({ sandboxId, port: port.port, path: "/", title: `Port ${port.port}` })}
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
