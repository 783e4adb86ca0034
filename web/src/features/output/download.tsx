import { useMutation } from "@tanstack/react-query";
import { Download } from "lucide-react";
import { useState } from "react";
import { api, got } from "@/api/client";
import type { Command } from "@/api/types";
import { bytes } from "@/lib/format";
import { save } from "@/lib/save";
import { IconButton } from "@/ui/button";
import { Menu, MenuItem, MenuTitle } from "@/ui/menu";
import { failed } from "@/ui/toast";
import { decode } from "./log-intake";
import type { Stream } from "./log-store";

const PAGE = 1 << 20;

/** Download the complete output of a command as a file. */
export function DownloadOutput({ command }: { command: Command }) {
  const [done, setDone] = useState(0);
  const download = useMutation({
    mutationFn: async (stream: Stream) => {
      const parts: BlobPart[] = [];
      for (let offset = 0; ; ) {
        const page = await got(
          api.GET("/api/v1/commands/{command_id}/output", {
            params: { path: { command_id: command.id }, query: { stream, offset, limit: PAGE } },
          }),
        );
        parts.push(page.text ?? (decode(page.base64 ?? "") as Uint8Array<ArrayBuffer>));
        setDone(page.total ? Math.round((page.end / page.total) * 100) : 100);
        if (page.end >= page.total || page.end === offset) break;
        offset = page.end;
      }
      save(new Blob(parts, { type: "application/octet-stream" }), `${command.id}.${stream}.log`);
    },
    onError: failed("Could not download the output"),
  });
  return (
    <Menu
      trigger={
        <IconButton
          size="sm"
          label={download.isPending ? `Downloading, ${done} %` : "Download"}
          busy={download.isPending}
        >
          {!download.isPending && <Download className="size-3.5" aria-hidden />}
        </IconButton>
      }
    >
      <MenuTitle>Full output, including colour codes</MenuTitle>
      {(["stdout", "stderr"] as const).map((stream) => (
        <MenuItem key={stream} disabled={!command[`${stream}Bytes`]} onSelect={() => download.mutate(stream)}>
          <span className="flex-1">{stream}</span>
          <span className="text-xs text-faint tabular-nums">{bytes(command[`${stream}Bytes`])}</span>
        </MenuItem>
      ))}
    </Menu>
  );
}
