import { Download } from "lucide-react";
import { useState } from "react";
import { useReadFullOutput } from "@/api/queries/commands";
import type { Command } from "@/api/types";
import { formatBytes } from "@/lib/format";
import { saveFile } from "@/lib/save-file";
import { IconButton } from "@/ui/button";
import { Menu, MenuItem, MenuTitle } from "@/ui/menu";
import { showError } from "@/ui/toast";

/** Download the complete output of a command as a file. */
export function DownloadOutput({ command }: { command: Command }) {
  const [percent, setPercent] = useState(0);
  const download = useReadFullOutput({
    onSuccess: (content, { stream }) => saveFile(content, `${command.id}.${stream}.log`),
    onError: showError("Could not download the output"),
  });
  return (
    <Menu
      trigger={
        <IconButton
          size="sm"
          label={download.isPending ? `Downloading, ${percent} %` : "Download"}
          busy={download.isPending}
        >
          {!download.isPending && <Download className="size-3.5" aria-hidden />}
        </IconButton>
      }
    >
      <MenuTitle>Full output, including colour codes</MenuTitle>
      {(["stdout", "stderr"] as const).map((stream) => (
        <MenuItem
          key={stream}
          disabled={!command[`${stream}Bytes`]}
          onSelect={() => download.mutate({ commandId: command.id, stream, onProgress: setPercent })}
        >
          <span className="flex-1">{stream}</span>
          <span className="text-xs text-faint tabular-nums">{formatBytes(command[`${stream}Bytes`])}</span>
        </MenuItem>
      ))}
    </Menu>
  );
}
