import { CaseSensitive, ChevronDown, ChevronUp, X } from "lucide-react";
import { count } from "@/lib/format";
import { IconButton } from "@/ui/button";
import { Input } from "@/ui/field";

interface Props {
  query: string;
  onQuery: (query: string) => void;
  label?: string;
  /** Whether the search is case-sensitive; undefined if there is no such option. */
  exact?: boolean;
  onExact?: (exact: boolean) => void;
  /** The number of the current match, from 1; 0 if there is none. */
  place: number;
  total: number;
  more: boolean;
  onStep: (by: 1 | -1) => void;
  onClose: () => void;
}

/** The search bar. Enter goes to the next match, Shift+Enter to the previous one, Escape closes it. */
export function LogFind({
  label = "Search output",
  query,
  onQuery,
  exact,
  onExact,
  place,
  total,
  more,
  onStep,
  onClose,
}: Props) {
  return (
    <search className="flex shrink-0 items-center gap-1 border-b bg-raised px-2 py-1">
      <Input
        data-find
        autoFocus
        type="search"
        aria-label={label}
        placeholder="Search"
        value={query}
        onChange={(event) => onQuery(event.target.value)}
        onKeyDown={(event) => {
          if (event.key === "Enter") onStep(event.shiftKey ? -1 : 1);
          else if (event.key === "Escape") onClose();
          else return;
          event.preventDefault();
          event.stopPropagation();
        }}
        className="!h-7 min-w-0 flex-1 text-xs sm:max-w-72"
      />
      <span aria-live="polite" className="px-1 text-2xs whitespace-nowrap text-soft tabular-nums">
        {query && (total ? `${place || "–"} of ${count(total)}${more ? "+" : ""}` : "Not found")}
      </span>
      {onExact && (
        <IconButton
          size="sm"
          label="Match case"
          aria-pressed={exact}
          className="aria-pressed:bg-sunken aria-pressed:text-text"
          onClick={() => onExact(!exact)}
        >
          <CaseSensitive className="size-4" aria-hidden />
        </IconButton>
      )}
      <IconButton size="sm" label="Previous match" disabled={!total} onClick={() => onStep(-1)}>
        <ChevronUp className="size-4" aria-hidden />
      </IconButton>
      <IconButton size="sm" label="Next match" disabled={!total} onClick={() => onStep(1)}>
        <ChevronDown className="size-4" aria-hidden />
      </IconButton>
      <IconButton size="sm" label="Close search" onClick={onClose}>
        <X className="size-4" aria-hidden />
      </IconButton>
    </search>
  );
}
