import clsx from "clsx";
import type { AnsiStyle } from "@/lib/ansi";
import "./ansi.css";

/** Return the CSS classes for the style of a piece of terminal output. */
export function ansiClasses(style: AnsiStyle): string | undefined {
  const { fg, bg, bold, dim, italic, underline, inverse, strike } = style;
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
