import { ArrowDown, ArrowLeft, ArrowRight, ArrowUp } from "lucide-react";
import type { ReactNode } from "react";
import { Button } from "@/ui/button";

export type ArrowKey = "up" | "down" | "right" | "left";
const ICON = "size-3.5";
const TEXT_KEYS: readonly [string, string][] = [
  ["Esc", "\x1b"],
  ["Tab", "\t"],
  ["Ctrl+C", "\x03"],
  ["Ctrl+D", "\x04"],
  ["Ctrl+Z", "\x1a"],
];
const ARROW_KEYS: readonly [string, ArrowKey, ReactNode][] = [
  ["Left", "left", <ArrowLeft key="left" className={ICON} aria-hidden />],
  ["Up", "up", <ArrowUp key="up" className={ICON} aria-hidden />],
  ["Down", "down", <ArrowDown key="down" className={ICON} aria-hidden />],
  ["Right", "right", <ArrowRight key="right" className={ICON} aria-hidden />],
];

/** Keys that the on-screen keyboard of a phone or tablet lacks. Shown on touch screens only. */
export function TouchKeys({ onText, onArrow }: { onText: (text: string) => void; onArrow: (key: ArrowKey) => void }) {
  return (
    <div
      role="toolbar"
      aria-label="Terminal keys"
      className="hidden shrink-0 gap-1 overflow-x-auto border-t px-2 py-1 pointer-coarse:flex"
      onPointerDown={(event) => event.preventDefault()} // keep the focus, and with it the on-screen keyboard, in the terminal
    >
      {TEXT_KEYS.map(([label, text]) => (
        <Button key={label} size="sm" onClick={() => onText(text)}>
          {label}
        </Button>
      ))}
      {ARROW_KEYS.map(([label, key, icon]) => (
        <Button key={key} size="sm" aria-label={label} onClick={() => onArrow(key)}>
          {icon}
        </Button>
      ))}
    </div>
  );
}
