import { ExternalLink, PlugZap, RotateCw, X } from "lucide-react";
import { useCallback, useEffect, useRef, useState } from "react";
import { readShownPath, useCreatePreview, useOpenPreviewTab } from "@/api/queries/previews";
import { usePorts } from "@/api/queries/sandboxes";
import { Button, IconButton } from "@/ui/button";
import { Sheet } from "@/ui/dialog";
import { Input } from "@/ui/field";
import { Empty } from "@/ui/states";
import { showError } from "@/ui/toast";
import { useWide } from "@/ui/use-wide";
import { type Address, parseAddress } from "./address";
import { isListening } from "./listening";
import { type OpenPreview, showPreview } from "./open-preview";

const POLL_MS = 3000;

const close = () => showPreview(null);

/** The open preview: beside the page if there is room, otherwise in a drawer. */
export function PreviewPanel({ preview }: { preview: OpenPreview }) {
  const wide = useWide();
  const key = `${preview.sandboxId}:${preview.port}:${preview.path}`;
  if (!wide) {
    return (
      <Sheet wide open onOpenChange={close} title={preview.title}>
        <div className="flex h-full min-h-[70vh] flex-col gap-2">
          <PreviewFrame key={key} preview={preview} />
        </div>
      </Sheet>
    );
  }
  return (
    <aside
      aria-label={`Preview: ${preview.title}`}
      className="flex w-[42%] shrink-0 flex-col gap-2 border-l bg-surface p-2"
    >
      <div className="flex items-center gap-2">
        <h2 className="min-w-0 flex-1 truncate text-[13px] font-semibold">{preview.title}</h2>
        <IconButton label="Close preview" size="sm" onClick={close}>
          <X className="size-4" aria-hidden />
        </IconButton>
      </div>
      <PreviewFrame key={key} preview={preview} />
    </aside>
  );
}

/** A sandboxed frame of another origin, which cannot leave its frame or access this page, with an address bar. */
function PreviewFrame({ preview: { sandboxId, port, path, title } }: { preview: OpenPreview }) {
  const [address, setAddress] = useState<Address>({ path, hash: "" });
  /** Text of the address bar while it is edited. */
  const [typed, setTyped] = useState<string | null>(null);
  const [frame, setFrame] = useState<{ url: string; number: number } | null>(null);
  const create = useCreatePreview({
    onSuccess: (url, { path: shownPath, hash }) => {
      setAddress({ path: shownPath, hash });
      setTyped(null);
      // a new frame each time: the location of a cross-origin frame cannot be read or set
      setFrame((last) => ({ url, number: (last?.number ?? 0) + 1 }));
    },
    onError: showError("Could not open the preview"),
  });
  const openTab = useOpenPreviewTab({ onError: showError("Could not open the preview") });
  const { mutate } = create;
  const show = useCallback(
    (next: Address) => mutate({ sandboxId, port, path: next.path, hash: next.hash }),
    [mutate, sandboxId, port],
  );
  const first = useRef(true);
  useEffect(() => {
    if (first.current) show({ path, hash: "" });
    first.current = false;
  }, [show, path]);
  const ports = usePorts(sandboxId, { refetchInterval: POLL_MS });
  const listening = isListening(ports.data, port);
  const wasListening = useRef(listening);
  useEffect(() => {
    if (listening === null) return;
    if (listening && wasListening.current === false) show(address); // the server is back
    wasListening.current = listening;
  }, [listening, show, address]);
  const updateAddress = async () => {
    const now = await readShownPath(sandboxId, port).catch(() => null);
    if (now !== null) setAddress((last) => (last.path === now ? last : { path: now, hash: "" }));
  };
  return (
    <>
      <form
        className="flex items-center gap-1"
        onSubmit={(event) => {
          event.preventDefault();
          show(typed === null ? address : parseAddress(typed));
        }}
      >
        <IconButton label="Reload preview" size="sm" disabled={create.isPending} onClick={() => show(address)}>
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
        <IconButton label="Open in a new tab" size="sm" onClick={() => openTab.mutate({ sandboxId, port, ...address })}>
          <ExternalLink className="size-4" aria-hidden />
        </IconButton>
      </form>
      {listening === false && (
        <Empty
          title={`Nothing is listening on port ${port}`}
          icon={<PlugZap className="size-6" aria-hidden />}
          action={
            <Button busy={ports.isFetching} onClick={() => ports.refetch()}>
              Check again
            </Button>
          }
        >
          Start the server in the sandbox. The preview reloads when it is back.
        </Empty>
      )}
      {frame && listening !== false && (
        <iframe
          key={frame.number}
          src={frame.url}
          title={title}
          onLoad={updateAddress}
          className="min-h-0 w-full flex-1 rounded-md border bg-white"
          sandbox="allow-scripts allow-forms allow-same-origin allow-downloads allow-popups allow-modals"
          referrerPolicy="no-referrer"
        />
      )}
    </>
  );
}
