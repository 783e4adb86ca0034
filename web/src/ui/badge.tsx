import clsx from "clsx";
import type { ReactNode } from "react";
import type { Tone } from "@/model/status-labels";

const TONES: Record<Tone, string> = {
  ok: "bg-ok-soft text-ok",
  warn: "bg-warn-soft text-warn",
  bad: "bg-bad-soft text-bad",
  info: "bg-info-soft text-info",
  accent: "bg-accent-soft text-accent",
  idle: "bg-idle-soft text-soft",
};

export function Badge({
  tone = "idle",
  children,
  className,
  title,
}: {
  tone?: Tone;
  children: ReactNode;
  className?: string;
  title?: string;
}) {
  return (
    <span
      title={title}
      className={clsx(
        "inline-flex h-5 max-w-full items-center gap-1 rounded px-1.5 text-2xs font-medium whitespace-nowrap",
        TONES[tone],
        className,
      )}
    >
      {children}
    </span>
  );
}

const DOTS: Record<Tone, string> = {
  ok: "bg-ok",
  warn: "bg-warn",
  bad: "bg-bad",
  info: "bg-info",
  accent: "bg-accent",
  idle: "bg-faint",
};

/** A coloured dot. Never the only signal: put text beside it, or pass `label` for screen readers. */
export function Dot({ tone, pulse = false, label }: { tone: Tone; pulse?: boolean; label?: string }) {
  const spot = (
    <span className="relative inline-flex size-2 shrink-0" aria-hidden>
      {pulse && <span className={clsx("absolute inset-0 animate-ping rounded-full opacity-60", DOTS[tone])} />}
      <span className={clsx("relative size-2 rounded-full", DOTS[tone])} />
    </span>
  );
  if (!label) return spot;
  return (
    <>
      {spot}
      <span className="sr-only">{label}</span>
    </>
  );
}

export function Kbd({ children }: { children: ReactNode }) {
  return (
    <kbd className="rounded border border-line-strong bg-sunken px-1 font-mono text-2xs text-soft">{children}</kbd>
  );
}
