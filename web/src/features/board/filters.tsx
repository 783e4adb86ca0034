import { getRouteApi } from "@tanstack/react-router";
import { Search, SlidersHorizontal, X } from "lucide-react";
import { useEffect, useRef, useState } from "react";
import type { Project } from "@/api/types";
import type { BoardSearch } from "@/lib/search-params";
import { agentTitle } from "@/model/task-facts";
import { IconButton } from "@/ui/button";
import { Input, Select } from "@/ui/field";
import { Popover } from "@/ui/menu";
import type { BoardView } from "./view";

const route = getRouteApi("/inside/board");
const TYPING_MS = 200;
const ANY = "any";

/** The board's filters. All of them are stored in the URL. */
export function Filters({ view }: { view: BoardView }) {
  const search = route.useSearch();
  const navigate = route.useNavigate();
  const set = (change: Partial<BoardSearch>) =>
    navigate({ search: (before) => ({ ...before, ...change }), replace: true });
  const chosen = [search.project, search.agent, search.show].filter(Boolean).length;
  const choices = <Choices search={search} set={set} view={view} />;
  return (
    <>
      <SearchBox value={search.q ?? ""} onChange={(q) => set({ q: q || undefined })} />
      <div className="hidden items-center gap-2 lg:flex">{choices}</div>
      <div className="lg:hidden">
        <Popover
          label="Filters"
          align="start"
          className="flex w-56 flex-col gap-2"
          trigger={
            <IconButton
              label={chosen ? `Filters, ${chosen} active` : "Filters"}
              look="plain"
              className={chosen ? "!text-accent" : undefined}
            >
              <SlidersHorizontal className="size-3.5" aria-hidden />
            </IconButton>
          }
        >
          {choices}
        </Popover>
      </div>
      {(search.q || search.agent || search.show || search.project) && (
        <IconButton label="Clear filters" onClick={() => navigate({ search: {}, replace: true })}>
          <X className="size-4" aria-hidden />
        </IconButton>
      )}
    </>
  );
}

function Choices({
  search,
  set,
  view,
}: {
  search: BoardSearch;
  set: (change: Partial<BoardSearch>) => void;
  view: BoardView;
}) {
  const projects = [...view.projects.values()].filter(
    (project: Project) => !project.archivedAt || project.id === search.project,
  );
  return (
    <>
      <Select
        label="Project"
        className="lg:!w-40"
        value={search.project ?? ANY}
        onChange={(value) => set({ project: value === ANY ? undefined : value })}
        choices={[
          { value: ANY, label: "All projects" },
          ...projects.map((project) => ({ value: project.id, label: project.name })),
        ]}
      />
      <Select
        label="Agent"
        className="lg:!w-36"
        value={search.agent ?? ANY}
        onChange={(value) => set({ agent: value === ANY ? undefined : value })}
        choices={[
          { value: ANY, label: "Any agent" },
          ...[...view.agents.values()].map((agent) => ({ value: agent.name, label: agentTitle(agent) })),
        ]}
      />
      <Select
        label="Show"
        className="lg:!w-32"
        value={search.show ?? ANY}
        onChange={(value) => set({ show: value === ANY ? undefined : (value as NonNullable<BoardSearch["show"]>) })}
        choices={[
          { value: ANY, label: "All cards" },
          { value: "needs-you", label: "Needs you" },
          { value: "running", label: "Running" },
          { value: "failed", label: "Failed" },
        ]}
      />
    </>
  );
}

/** A search box that applies the text after a short pause in typing. */
function SearchBox({ value, onChange }: { value: string; onChange: (text: string) => void }) {
  const [text, setText] = useState(value);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  useEffect(() => setText(value), [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  return (
    <div className="relative min-w-0 flex-1 sm:max-w-64">
      <Search className="pointer-events-none absolute top-2 left-2.5 size-4 text-faint" aria-hidden />
      <Input
        type="search"
        aria-label="Search cards"
        placeholder="Search"
        value={text}
        maxLength={200}
        className="pl-8"
        onChange={(event) => {
          const next = event.target.value;
          setText(next);
          clearTimeout(timer.current);
          timer.current = setTimeout(() => onChange(next.trim()), TYPING_MS);
        }}
      />
    </div>
  );
}
