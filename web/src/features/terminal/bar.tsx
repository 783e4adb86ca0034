import {
  AArrowDown,
  AArrowUp,
  Accessibility,
  ClipboardPaste,
  Copy,
  Ellipsis,
  Plus,
  Search,
  Trash2,
} from "lucide-react";
import { type Ref, useState } from "react";
import { useCloseTerminal, useTerminals } from "@/api/queries/sandboxes";
import { formatAgo } from "@/lib/format";
import { Button, IconButton } from "@/ui/button";
import { Confirm } from "@/ui/dialog";
import { Select } from "@/ui/field";
import { Menu, MenuItem, MenuLine } from "@/ui/menu";
import { showError } from "@/ui/toast";

interface Props {
  ref: Ref<HTMLDivElement>;
  sandboxId: string;
  current: string | undefined;
  onChoose: (id: string | undefined) => void;
  fontSize: number;
  onFontSize: (size: number) => void;
  screenReader: boolean;
  onScreenReader: (on: boolean) => void;
  onFind: () => void;
  onCopy: () => void;
  onPaste: () => void;
}

/** The toolbar: select a shell, and actions for it. */
export function TerminalBar(props: Props) {
  const { current, onChoose, fontSize, onFontSize, screenReader } = props;
  const [ending, setEnding] = useState(false);
  const shells = useTerminals(props.sandboxId);
  const close = useCloseTerminal({ onError: showError("Could not close the shell") });
  const open = shells.data ?? [];
  const choices = open.map((shell, index) => ({
    value: shell.id,
    label: `Shell ${index + 1}`,
    detail: `process ${shell.pid}, opened ${formatAgo(shell.createdAt)}`,
  }));
  const changeSize = (by: number) => (event: Event) => {
    event.preventDefault(); // keep the menu open, so that sizes can be tried
    onFontSize(fontSize + by);
  };
  const closeShell = async () => {
    if (!current) return;
    await close.mutateAsync({ sandboxId: props.sandboxId, terminalId: current });
  };
  return (
    <div ref={props.ref} className="flex shrink-0 items-center gap-1 border-b px-2 py-1">
      <Select
        label="Shell"
        className="!h-7 !w-36 text-xs"
        value={current && open.some((shell) => shell.id === current) ? current : ""}
        placeholder={open.length ? "Choose a shell" : "No open shells"}
        disabled={!open.length}
        onChange={onChoose}
        choices={choices}
      />
      <Button size="sm" look="ghost" className="mr-auto" onClick={() => onChoose(undefined)}>
        <Plus className="size-3.5" aria-hidden />
        New shell
      </Button>
      <IconButton size="sm" label="Search (Ctrl+Shift+F)" onClick={props.onFind}>
        <Search className="size-3.5" aria-hidden />
      </IconButton>
      <IconButton size="sm" label="Copy selection" className="!hidden sm:!inline-flex" onClick={props.onCopy}>
        <Copy className="size-3.5" aria-hidden />
      </IconButton>
      <IconButton size="sm" label="Paste" onClick={props.onPaste}>
        <ClipboardPaste className="size-3.5" aria-hidden />
      </IconButton>
      <Menu
        trigger={
          <IconButton size="sm" label="More">
            <Ellipsis className="size-4" aria-hidden />
          </IconButton>
        }
      >
        <MenuItem onSelect={props.onCopy}>
          <Copy className="size-3.5" aria-hidden /> Copy selection
        </MenuItem>
        <MenuItem disabled={fontSize >= 24} onSelect={changeSize(1)}>
          <AArrowUp className="size-3.5" aria-hidden /> Larger text
        </MenuItem>
        <MenuItem disabled={fontSize <= 8} onSelect={changeSize(-1)}>
          <AArrowDown className="size-3.5" aria-hidden /> Smaller text
        </MenuItem>
        <MenuItem onSelect={() => props.onScreenReader(!screenReader)}>
          <Accessibility className="size-3.5" aria-hidden />{" "}
          {screenReader ? "Screen reader mode: on" : "Screen reader mode: off"}
        </MenuItem>
        <MenuLine />
        <MenuItem danger disabled={!current} onSelect={() => setEnding(true)}>
          <Trash2 className="size-3.5" aria-hidden /> Close shell
        </MenuItem>
      </Menu>
      <Confirm
        open={ending}
        onOpenChange={setEnding}
        title="Close this shell?"
        action="Close shell"
        onConfirm={closeShell}
      >
        Programs running in it are stopped, for everyone who has it open.
      </Confirm>
    </div>
  );
}
