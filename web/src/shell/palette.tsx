import { Dialog } from "radix-ui";
import { useEffect, useState } from "react";
import { Commands } from "./palette-commands";
import { onPalette } from "./palette-state";

/** The command palette (Ctrl+K). Not lazy-loaded: letters typed right after the shortcut must arrive in its search box. */
export function Palette() {
  const [open, setOpen] = useState(false);
  useEffect(() => {
    const show = () => setOpen(true);
    const key = (event: KeyboardEvent) => {
      if ((event.ctrlKey || event.metaKey) && !event.shiftKey && !event.altKey && event.key.toLowerCase() === "k") {
        event.preventDefault();
        show();
      }
    };
    addEventListener("keydown", key);
    const forget = onPalette(show);
    return () => {
      removeEventListener("keydown", key);
      forget();
    };
  }, []);
  return (
    <Dialog.Root open={open} onOpenChange={setOpen}>
      <Dialog.Portal>
        <Dialog.Overlay className="fixed inset-0 z-40 bg-black/40" />
        <Dialog.Content
          aria-describedby={undefined}
          className="fixed top-[12vh] left-1/2 z-50 w-[min(38rem,94vw)] -translate-x-1/2 overflow-hidden rounded-lg border bg-raised shadow-float outline-none"
        >
          <Dialog.Title className="sr-only">Search and commands</Dialog.Title>
          <Commands onClose={() => setOpen(false)} />
        </Dialog.Content>
      </Dialog.Portal>
    </Dialog.Root>
  );
}
