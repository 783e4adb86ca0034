import clsx from "clsx";

interface BarProps {
  /** For screen readers, with the figures. */
  label: string;
  /** From 0 to 1; more is shown as full. */
  part: number;
  /** From which part on the bar warns. */
  warnAt?: number;
  /** From which part on the bar shows a problem. */
  badAt?: number;
}

/** A horizontal bar that shows how much of something is used. */
export function Bar({ label, part, warnAt = 0.8, badAt = 1 }: BarProps) {
  return (
    <svg viewBox="0 0 100 6" preserveAspectRatio="none" className="h-1.5 w-full" role="img" aria-label={label}>
      <rect width={100} height={6} className="fill-sunken" />
      <rect
        width={100 * Math.max(0, Math.min(1, part))}
        height={6}
        className={clsx(part >= badAt ? "fill-bad" : part >= warnAt ? "fill-warn" : "fill-accent")}
      />
    </svg>
  );
}
