import clsx from "clsx";
import { DropdownMenu, Popover as RadixPopover } from "radix-ui";
import type { ComponentProps, ReactNode } from "react";

const PANEL = "z-50 rounded-md border bg-raised p-1 shadow-float outline-none";

interface MenuProps {
  trigger: ReactNode;
  children: ReactNode;
  align?: "start" | "end";
  /** Controls the menu from outside; the trigger then only determines its position. */
  open?: boolean;
  onOpenChange?: (open: boolean) => void;
  onCloseAutoFocus?: (event: Event) => void;
}

export function Menu({ trigger, children, align = "end", open, onOpenChange, onCloseAutoFocus }: MenuProps) {
  return (
    // not modal: the page behind stays visible to screen readers
    <DropdownMenu.Root modal={false} {...(open === undefined ? {} : { open })} onOpenChange={onOpenChange}>
      <DropdownMenu.Trigger asChild>{trigger}</DropdownMenu.Trigger>
      <DropdownMenu.Portal>
        <DropdownMenu.Content
          align={align}
          sideOffset={4}
          collisionPadding={8}
          onCloseAutoFocus={onCloseAutoFocus}
          className={clsx(PANEL, "min-w-44")}
        >
          {children}
        </DropdownMenu.Content>
      </DropdownMenu.Portal>
    </DropdownMenu.Root>
  );
}

export function MenuItem({
  danger = false,
  className,
  ...rest
}: ComponentProps<typeof DropdownMenu.Item> & { danger?: boolean }) {
  return (
    <DropdownMenu.Item
      {...rest}
      className={clsx(
        "flex cursor-pointer items-center gap-2 rounded px-2 py-1.5 text-[13px] outline-none data-[disabled]:cursor-default data-[disabled]:opacity-50 data-[highlighted]:bg-hover",
        danger && "text-bad",
        className,
      )}
    />
  );
}

export const MenuLine = () => <DropdownMenu.Separator className="my-1 h-px bg-line" />;

export function MenuTitle({ children }: { children: ReactNode }) {
  return <DropdownMenu.Label className="px-2 py-1 text-2xs font-medium text-faint">{children}</DropdownMenu.Label>;
}

export function Popover({
  label,
  trigger,
  children,
  align = "end",
  className,
  ...controlled
}: {
  /** Accessible name. */
  label?: string;
  trigger: ReactNode;
  children: ReactNode;
  align?: "start" | "end";
  className?: string;
  /** `open` and `onOpenChange` control the popover from outside, for content that closes it. */
  open?: boolean;
  onOpenChange?: (open: boolean) => void;
}) {
  return (
    <RadixPopover.Root {...controlled}>
      <RadixPopover.Trigger asChild>{trigger}</RadixPopover.Trigger>
      <RadixPopover.Portal>
        <RadixPopover.Content
          aria-label={label}
          align={align}
          sideOffset={4}
          collisionPadding={8}
          className={clsx(PANEL, "p-3", className)}
        >
          {children}
        </RadixPopover.Content>
      </RadixPopover.Portal>
    </RadixPopover.Root>
  );
}
