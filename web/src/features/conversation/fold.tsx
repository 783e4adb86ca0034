import clsx from "clsx";
import { ChevronRight } from "lucide-react";
import { createContext, type ReactNode, useContext, useId, useState } from "react";

/** Remembers which rows are expanded while they are not rendered. `touched` is called when the user expands or collapses a row. */
export interface Folds {
  open: Map<string, boolean>;
  touched: () => void;
}
export const FoldContext = createContext<Folds>({ open: new Map(), touched: () => undefined });

export function useFold(key: string, initial = false): [boolean, (open: boolean) => void] {
  const folds = useContext(FoldContext);
  const [open, setOpen] = useState(folds.open.get(key) ?? initial);
  return [
    open,
    (next) => {
      folds.open.set(key, next);
      folds.touched();
      setOpen(next);
    },
  ];
}

/** A collapsible row. `more` is rendered only while it is expanded. */
export function Fold({
  id,
  head,
  more,
  initial = false,
  className,
}: {
  id: string;
  head: ReactNode;
  more: () => ReactNode;
  initial?: boolean;
  className?: string;
}) {
  const [open, setOpen] = useFold(id, initial);
  const region = useId();
  return (
    <div className={className}>
      <button
        type="button"
        aria-expanded={open}
        aria-controls={open ? region : undefined}
        onClick={() => setOpen(!open)}
        className="flex w-full min-w-0 items-center gap-2 rounded px-1.5 py-1 text-left text-[13px] hover:bg-hover"
      >
        <ChevronRight
          className={clsx("size-3.5 shrink-0 text-faint transition-transform", open && "rotate-90")}
          aria-hidden
        />
        {head}
      </button>
      {open && <div id={region}>{more()}</div>}
    </div>
  );
}
