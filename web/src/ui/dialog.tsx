import clsx from "clsx";
import { X } from "lucide-react";
import { AlertDialog, Dialog as RadixDialog } from "radix-ui";
import { type ReactNode, useRef, useState } from "react";
import { Button, IconButton } from "./button";

const OVERLAY = "fixed inset-0 z-40 bg-black/40";

interface DialogProps {
  open: boolean;
  onOpenChange: (open: boolean) => void;
  title: ReactNode;
  description?: ReactNode;
  children: ReactNode;
  footer?: ReactNode;
  wide?: boolean;
}

/** A centred dialog; full screen on a phone. */
export function Dialog({ wide = false, ...shown }: DialogProps) {
  return (
    <Panel
      {...shown}
      className={clsx(
        "inset-0 top-[var(--toasts,0px)] sm:inset-auto sm:top-[8vh] sm:left-1/2 sm:max-h-[84vh] sm:-translate-x-1/2 sm:rounded-lg sm:border",
        wide ? "sm:w-[min(56rem,94vw)]" : "sm:w-[min(34rem,94vw)]",
      )}
    />
  );
}

/** A drawer from the right edge. */
export function Sheet({ wide = false, ...shown }: DialogProps) {
  return (
    <Panel
      {...shown}
      className={clsx("inset-y-0 right-0 w-full border-l", wide ? "sm:w-[min(80rem,92vw)]" : "sm:w-[min(32rem,92vw)]")}
    />
  );
}

/** Return where the focus was before a dialog opened. An item of a menu is gone by then: the menu's button stands for it. */
function findOpener(): HTMLElement | null {
  const focused = document.activeElement;
  const menu = focused?.closest("[role=menu]")?.getAttribute("aria-labelledby");
  const opener = menu ? document.getElementById(menu) : focused;
  return opener instanceof HTMLElement ? opener : null;
}

/**
 * Return the focus to where it was before the dialog opened; if that is gone, to the page. Radix does so only for dialogs with a trigger,
 * and takes a focused field of the dialog for the place where the focus was.
 */
function useReturnFocus(open: boolean) {
  const opener = useRef<HTMLElement | null>(null);
  const wasOpen = useRef(false);
  if (open && !wasOpen.current && typeof document !== "undefined") opener.current = findOpener();
  wasOpen.current = open;
  return (event: Event) => {
    event.preventDefault();
    const focused = document.activeElement;
    // a page that was opened from the dialog may have focused a field of its own
    if (focused && focused !== document.body && !(event.currentTarget as HTMLElement | null)?.contains(focused)) return;
    const target = opener.current?.isConnected ? opener.current : document.getElementById("main");
    target?.focus({ preventScroll: true });
  };
}

function Panel({
  open,
  onOpenChange,
  title,
  description,
  children,
  footer,
  className,
}: Omit<DialogProps, "wide"> & { className: string }) {
  const returnFocus = useReturnFocus(open);
  return (
    <RadixDialog.Root open={open} onOpenChange={onOpenChange}>
      <RadixDialog.Portal>
        <RadixDialog.Overlay className={OVERLAY} />
        <RadixDialog.Content
          className={clsx("fixed z-50 flex flex-col bg-raised shadow-float outline-none", className)}
          onOpenAutoFocus={(event) => {
            // otherwise the first button, Close, is focused and shows its tooltip
            event.preventDefault();
            (event.currentTarget as HTMLElement | null)?.focus();
          }}
          onCloseAutoFocus={returnFocus}
          {...(description ? {} : { "aria-describedby": undefined })}
        >
          <DialogHeader title={title} description={description} />
          <div className="min-h-0 flex-1 overflow-y-auto px-4 py-3">{children}</div>
          {footer && <div className="flex items-center justify-end gap-2 border-t px-4 py-3">{footer}</div>}
        </RadixDialog.Content>
      </RadixDialog.Portal>
    </RadixDialog.Root>
  );
}

function DialogHeader({ title, description }: { title: ReactNode; description?: ReactNode }) {
  return (
    <div className="flex items-start gap-2 border-b px-4 py-3">
      <div className="min-w-0 flex-1">
        <RadixDialog.Title className="text-[15px] font-semibold">{title}</RadixDialog.Title>
        {description && (
          <RadixDialog.Description className="mt-0.5 text-xs text-soft">{description}</RadixDialog.Description>
        )}
      </div>
      <RadixDialog.Close asChild>
        <IconButton label="Close" size="sm">
          <X className="size-4" aria-hidden />
        </IconButton>
      </RadixDialog.Close>
    </div>
  );
}

/**
 * Ask before an action that is hard to undo. Stays open and busy until `onConfirm` settles; the caller shows failures. Use the look
 * `danger` if something is lost.
 */
export function Confirm({
  trigger,
  title,
  children,
  action,
  cancel = "Cancel",
  look = "danger",
  onConfirm,
  open,
  onOpenChange,
}: {
  trigger?: ReactNode;
  title: ReactNode;
  children: ReactNode;
  action: string;
  cancel?: string;
  look?: "primary" | "danger";
  onConfirm: () => Promise<unknown> | unknown;
  open?: boolean;
  onOpenChange?: (open: boolean) => void;
}) {
  const [own, setOwn] = useState(false);
  const [busy, setBusy] = useState(false);
  const shown = open ?? own;
  const show = onOpenChange ?? setOwn;
  const returnFocus = useReturnFocus(shown);
  const confirm = async () => {
    setBusy(true);
    try {
      await onConfirm();
      show(false);
    } catch {
      // the mutation reports the error
    } finally {
      setBusy(false);
    }
  };
  return (
    <AlertDialog.Root open={shown} onOpenChange={show}>
      {trigger && <AlertDialog.Trigger asChild>{trigger}</AlertDialog.Trigger>}
      <AlertDialog.Portal>
        <AlertDialog.Overlay className={OVERLAY} />
        <AlertDialog.Content
          onCloseAutoFocus={returnFocus}
          className="fixed top-[20vh] left-1/2 z-50 w-[min(26rem,92vw)] -translate-x-1/2 rounded-lg border bg-raised p-4 shadow-float outline-none"
        >
          <AlertDialog.Title className="text-[15px] font-semibold">{title}</AlertDialog.Title>
          <AlertDialog.Description asChild>
            <div className="mt-1 text-[13px] text-soft">{children}</div>
          </AlertDialog.Description>
          <div className="mt-4 flex justify-end gap-2">
            <AlertDialog.Cancel asChild>
              <Button>{cancel}</Button>
            </AlertDialog.Cancel>
            <Button look={look} busy={busy} onClick={confirm}>
              {action}
            </Button>
          </div>
        </AlertDialog.Content>
      </AlertDialog.Portal>
    </AlertDialog.Root>
  );
}
