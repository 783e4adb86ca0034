import clsx from "clsx";
import type { Look } from "@/lib/ansi";
import "./ansi.css";

/** The classes of what a program wrote in a colour. */
export function looks(look: Look): string | undefined {
  const { fg, bg, bold, dim, italic, underline, inverse, strike } = look;
  return (
    clsx(
      inverse ? "log-inverse" : [fg && `log-fg-${fg}`, bg && `log-bg-${bg}`],
      bold && "font-semibold",
      dim && "opacity-75",
      italic && "italic",
      underline && "underline",
      strike && "line-through",
    ) || undefined
  );
}
