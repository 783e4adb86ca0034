import clsx from "clsx";
import { LoaderCircle } from "lucide-react";
import { Tooltip } from "radix-ui";
import type { ComponentProps, ReactNode } from "react";

type Look = "primary" | "plain" | "ghost" | "danger";

const LOOKS: Record<Look, string> = {
  primary: "bg-accent text-on-accent hover:bg-accent-hover border-transparent",
  plain: "bg-surface text-text border-line-strong hover:bg-hover",
  ghost: "bg-transparent text-soft border-transparent hover:bg-hover hover:text-text",
  danger: "bg-surface text-bad border-line-strong hover:bg-bad-soft",
};

export interface ButtonProps extends ComponentProps<"button"> {
  look?: Look;
  size?: "sm" | "md";
  busy?: boolean;
}

/** `busy` shows a spinner and disables the button. */
export function Button({
  look = "plain",
  size = "md",
  busy = false,
  className,
  children,
  disabled,
  ...rest
}: ButtonProps) {
  return (
    <button
      type="button"
      {...rest}
      disabled={disabled || busy}
      aria-busy={busy || undefined}
      className={clsx(
        "inline-flex shrink-0 items-center justify-center gap-1.5 rounded-md border font-medium whitespace-nowrap transition-colors disabled:opacity-55",
        size === "sm" ? "h-7 px-2 text-xs" : "h-8 px-3 text-[13px]",
        LOOKS[look],
        className,
      )}
    >
      {busy && <LoaderCircle className="size-3.5 animate-spin" aria-hidden />}
      {children}
    </button>
  );
}

export interface IconButtonProps extends ButtonProps {
  label: string;
  side?: "top" | "bottom" | "left" | "right";
}

/** A button with only an icon. Its label is the accessible name and the tooltip. */
export function IconButton({ label, side = "bottom", className, children, look = "ghost", ...rest }: IconButtonProps) {
  return (
    <Hint text={label} side={side}>
      <Button
        look={look}
        aria-label={label}
        {...rest}
        className={clsx("!px-0", rest.size === "sm" ? "w-7" : "w-8", className)}
      >
        {children}
      </Button>
    </Hint>
  );
}

export function Hint({
  text,
  side = "bottom",
  children,
}: {
  text: ReactNode;
  side?: "top" | "bottom" | "left" | "right";
  children: ReactNode;
}) {
  return (
    <Tooltip.Root>
      <Tooltip.Trigger asChild>{children}</Tooltip.Trigger>
      <Tooltip.Portal>
        <Tooltip.Content
          side={side}
          sideOffset={4}
          collisionPadding={8}
          className="z-50 max-w-72 rounded-md border bg-raised px-2 py-1 text-xs text-text shadow-float"
        >
          {text}
        </Tooltip.Content>
      </Tooltip.Portal>
    </Tooltip.Root>
  );
}
