import { useMutation } from "@tanstack/react-query";
import { ExternalLink, RotateCw, X } from "lucide-react";
import { useEffect, useRef, useState } from "react";
import { useWide } from "@/features/workspace/use-wide";
import { IconButton } from "@/ui/button";
import { Sheet } from "@/ui/dialog";
import { Input } from "@/ui/field";
import { failed } from "@/ui/toast";
import { type Address, parseAddress } from "./address";
import { createPreview, openInTab, readShownPath } from "./open";
import { type Shown, showPreview } from "./shown";

const close = () => showPreview(null);

/** The open preview: beside the page if there is room, otherwise in a drawer. */
export function PreviewPanel({ shown }: { shown: Shown }) {
  const wide = useWide();
  const key = `${shown.sandboxId}:${shown.port}:${shown.path}`;
  if (!wide) {
    return (
      <Sheet wide open onOpenChange={close} title={shown.title}>
        <div className="flex h-full min-h-[70vh] flex-col gap-2">
          <Preview key={key} shown={shown} />
        </div>
      </Sheet>
    );
  }
  return (
    <aside
      aria-label={`Preview: ${shown.title}`}
      className="flex w-[42%] shrink-0 flex-col gap-2 border-l bg-surface p-2"
    >
      <div className="flex items-center gap-2">
        <h2 className="min-w-0 flex-1 truncate text-[13px] font-semibold">{shown.title}</h2>
        <IconButton label="Close preview" size="sm" onClick={close}>
          <X className="size-4" aria-hidden />
        </IconButton>
      </div>
      <Preview key={key} shown={shown} />
    </aside>
  );
}

/** A sandboxed frame of another origin, which cannot leave its frame or access this page, with an address bar. */
function Preview({ shown: { sandboxId, port, path, title } }: { shown: Shown }) {
  const [address, setAddress] = useState<Address>({ path, hash: "" });
  /** Text of the address bar while it is edited. */
  const [typed, setTyped] = useState<string | null>(null);
  const [frame, setFrame] = useState<{ url: string; number: number } | null>(null);
  const load = useMutation({
    mutationFn: async (to: Address) => {
      const url = await createPreview(sandboxId, port, to.path);
      setAddress(to);
      setTyped(null);
      // a new frame each time: the location of a cross-origin frame cannot be read or set
      setFrame((last) => ({ url: url + to.hash, number: (last?.number ?? 0) + 1 }));
    },
    onError: failed("Could not open the preview"),
  });
  const first = useRef(true);
  useEffect(() => {
    if (first.current) load.mutate({ path, hash: "" });
    first.current = false;
  }, [load.mutate, path]);
  const follow = async () => {
    const now = await readShownPath(sandboxId, port).catch(() => null);
    if (now !== null) setAddress((last) => (last.path === now ? last : { path: now, hash: "" }));
  };
  return (
    <>
      <form
        className="flex items-center gap-1"
        onSubmit={(event) => {
          event.preventDefault();
          load.mutate(typed === null ? address : parseAddress(typed));
        }}
      >
        <IconButton label="Reload preview" size="sm" disabled={load.isPending} onClick={() => load.mutate(address)}>
          <RotateCw className="size-4" aria-hidden />
        </IconButton>
        <Input
          aria-label="Preview address"
          value={typed ?? address.path + address.hash}
          onChange={(event) => setTyped(event.target.value)}
          onFocus={(event) => event.target.select()}
          onKeyDown={(event) => {
            if (event.key === "Escape" && typed !== null) {
              event.stopPropagation();
              setTyped(null);
            }
          }}
          maxLength={2000}
          spellCheck={false}
          autoComplete="off"
          className="font-mono text-xs"
        />
        <IconButton
          label="Open in a new tab"
          size="sm"
          onClick={() =>
            openInTab(sandboxId, port, address.path, address.hash).catch(failed("Could not open the preview"))
          }
        >
          <ExternalLink className="size-4" aria-hidden />
        </IconButton>
      </form>
      {frame && (
        <iframe
          key={frame.number}
          src={frame.url}
          title={title}
          onLoad={follow}
          className="min-h-0 w-full flex-1 rounded-md border bg-white"
          sandbox="allow-scripts allow-forms allow-same-origin allow-downloads allow-popups allow-modals"
          referrerPolicy="no-referrer"
        />
      )}
    </>
  );
}
